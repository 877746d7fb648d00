/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * job_submit/energy: asks slurm-energyd about each job as it is submitted and applies what the answer
 * names. slurm.conf: JobSubmitPlugins=energy. Settings: see ../common/settings.h.
 *
 * It runs under slurmctld's locks. Whatever goes wrong, the job is accepted as it came, at the latest
 * one deadline later.
 */
#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>	/* slurm_info() and slurm_error() */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/breaker.h"
#include "../common/exchange.h"
#include "../common/release.h"
#include "../common/request.h"
#include "../common/reuse.h"
#include "../common/settings.h"
#include "../common/tally.h"
#include "job.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT extern const char plugin_name[];
EXPORT extern const char plugin_type[];
const char plugin_name[] = "Energy-aware job submission plugin";
const char plugin_type[] = "job_submit/energy";

/*
 * In the file, the release it was compiled for (read from there by `slurm-energy doctor`); once loaded,
 * the release of slurmctld. See ../common/release.h. A name of its own keeps it from being mistaken for
 * another plugin's constant.
 */
static uint32_t stated_release = SLURM_VERSION_NUMBER;
static uint32_t compiled_release;
EXPORT extern const uint32_t plugin_version __attribute__((alias("stated_release")));

EXPORT extern int init(void);
EXPORT extern int fini(void);
EXPORT extern int job_submit(job_desc_msg_t *job_desc, uint32_t submit_uid, char **err_msg);
EXPORT extern int job_modify(job_desc_msg_t *job_desc, void *job_ptr, uint32_t submit_uid,
			     char **err_msg);

/* For doctor: this file follows the release of the Slurm that loads it. */
EXPORT extern const uint32_t slurm_energy_follows_release;
const uint32_t slurm_energy_follows_release = 1;

static energy_breaker_t breaker = ENERGY_BREAKER_INITIALIZER;
static energy_tally_t tally = ENERGY_TALLY_INITIALIZER;

__attribute__((constructor)) static void _follow_release(void)
{
	compiled_release = stated_release;
	stated_release = energy_running_release(&stated_release, compiled_release);
}

/* Whether job descriptions are laid out here as this file knows them. */
static bool _knows_jobs(void)
{
	return ENERGY_SAME_LAYOUT(compiled_release, stated_release);
}

static void _complain(const char *text)
{
	slurm_error("%s: %s", plugin_type, text);
}

static void _report(bool always)
{
	char text[640];

	if (energy_tally_report(&tally, energy_now_milliseconds(), always, text, sizeof(text)))
		slurm_error("%s: since the last such line: %s", plugin_type, text);
}

static void _strip(job_desc_msg_t *job)
{
	uint32_t stripped = energy_job_strip(job);

	while (stripped--)
		energy_tally_add(&tally, ENERGY_EVENT_STRIPPED, "");
}

/* Find the reply to one request, which is in bytes. True if there is a reply that says ok. */
static bool _exchange(const energy_settings_t *settings, const char *bytes, size_t length,
		      energy_reply_t *reply)
{
	static const energy_event_t events[] = {
		[ENERGY_EXCHANGE_ABSENT] = ENERGY_EVENT_ABSENT,
		[ENERGY_EXCHANGE_LATE] = ENERGY_EVENT_LATE,
		[ENERGY_EXCHANGE_BROKEN] = ENERGY_EVENT_BROKEN,
	};
	char raw[ENERGY_REPLY_BYTES], detail[160];
	const char *garbage = NULL;
	size_t raw_length;
	int64_t asked_at = energy_now_milliseconds();
	energy_exchange_t result;
	bool answered = false;

	if (energy_reuse_answer(settings->socket, bytes, length, asked_at, reply))
		return true;
	if (!energy_breaker_allows(&breaker, settings->breaker_failures,
				   settings->breaker_milliseconds, asked_at)) {
		energy_tally_add(&tally, ENERGY_EVENT_NOT_ASKED, "");
		return false;
	}
	result = energy_exchange(settings->socket, settings->deadline_milliseconds, bytes, length,
				 raw, sizeof(raw), &raw_length, detail, sizeof(detail));
	if (result == ENERGY_EXCHANGE_DONE)
		garbage = energy_reply_parse(raw, raw_length, reply);
	energy_breaker_result(&breaker, (result == ENERGY_EXCHANGE_DONE) && !garbage,
			      settings->breaker_failures, settings->breaker_milliseconds,
			      energy_now_milliseconds());
	if ((result != ENERGY_EXCHANGE_DONE) || garbage)
		energy_reuse_forget();
	if (result != ENERGY_EXCHANGE_DONE)
		energy_tally_add(&tally, events[result], detail);
	else if (garbage)
		energy_tally_add(&tally, ENERGY_EVENT_GARBAGE, garbage);
	else if (reply->status == ENERGY_REPLY_REFUSED)
		energy_tally_add(&tally, ENERGY_EVENT_REFUSED, reply->reason);
	else
		answered = true;
	if (answered)
		energy_reuse_keep(settings->socket, bytes, length, reply, asked_at);
	return answered;
}

/* Ask about the job. True if there is an answer to apply. */
static bool _ask(const job_desc_msg_t *job, uint32_t submit_uid, const energy_gpu_plan_t *plan,
		 const energy_settings_t *settings, energy_reply_t *reply)
{
	char *bytes = malloc(ENERGY_REQUEST_BYTES);
	size_t length;
	bool answered = false;

	if (!bytes) {
		energy_tally_add(&tally, ENERGY_EVENT_NO_MEMORY, "");
		return false;
	}
	length = energy_job_request(job, submit_uid, plan, bytes, ENERGY_REQUEST_BYTES);
	if (!length)
		energy_tally_add(&tally, ENERGY_EVENT_TOO_LONG, "");
	else
		answered = _exchange(settings, bytes, length, reply);
	free(bytes);
	return answered;
}

static bool _wants_message(const job_desc_msg_t *job, const energy_settings_t *settings)
{
	const char *quiet = energy_job_entry(job, ENERGY_ENTRY_QUIET);
	const char *terminal = energy_job_entry(job, ENERGY_ENTRY_TERMINAL);

	/* Programs that read sbatch's stderr take a line for an error, or its numbers for the job's. */
	return settings->message && terminal && (!quiet || strcmp(quiet, "1")) &&
	       (!strcmp(terminal, ENERGY_TERMINAL_IS) || !strcmp(terminal, ENERGY_TERMINAL_EXPLAIN));
}

extern energy_applied_t energy_job_apply(job_desc_msg_t *job, uint32_t submit_uid,
					 const energy_reply_t *reply, const energy_gpu_plan_t *plan, char *why,
					 size_t size)
{
	const energy_gpu_option_t *option = reply->gpus ? energy_gpu_option(plan, reply->gpus) : NULL;
	energy_applied_t applied = ENERGY_APPLIED;

	if (reply->gpus && !option) {
		snprintf(why, size, "%u", reply->gpus);
		return ENERGY_APPLIED_NOTHING;
	}
	/* The entry first: a job that moved without it would run at the wrong clock. */
	if (reply->entry[0] && !energy_job_add_decision(job, reply->entry))
		return ENERGY_APPLY_NO_MEMORY;
	/* The partitions are then judged for the job as it is to be. */
	if (option && !energy_gpu_apply(job, plan, option))
		return ENERGY_APPLY_NO_MEMORY;
	if (reply->partition[0])
		applied = energy_job_partition(job, submit_uid, reply->partition, reply->open, why, size);
	if (applied == ENERGY_APPLY_NO_MEMORY)
		return applied;
	/* A feature of the partition that the answer named may be nowhere in the user's own. */
	if (reply->prefer[0] && (applied == ENERGY_APPLIED) && !energy_job_prefer(job, reply->prefer))
		return ENERGY_APPLY_NO_MEMORY;
	energy_job_begin(job, reply->begin_time);
	if (reply->admin_comment[0] &&
	    !energy_job_comment(job, reply->admin_comment, applied != ENERGY_APPLIED))
		return ENERGY_APPLY_NO_MEMORY;
	return applied;
}

static void _decide(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	energy_settings_t settings;
	energy_reply_t reply;
	energy_gpu_plan_t plan;
	const char *message;
	char why[200] = "";

	energy_settings_current(&settings, _complain);
	energy_gpu_plan(job, submit_uid, &plan);
	if (!_ask(job, submit_uid, &plan, &settings, &reply))
		return;
	message = reply.message;
	switch (energy_job_apply(job, submit_uid, &reply, &plan, why, sizeof(why))) {
	case ENERGY_APPLIED_NOTHING:
		energy_tally_add(&tally, ENERGY_EVENT_FOREIGN_COUNT, why);
		return;
	case ENERGY_APPLY_NO_MEMORY:
		energy_tally_add(&tally, ENERGY_EVENT_NO_MEMORY, "");
		return;		/* a message would promise what was not done */
	case ENERGY_APPLIED_BUT_FOREIGN:
		energy_tally_add(&tally, ENERGY_EVENT_FOREIGN_PARTITION, reply.partition);
		message = reply.message_in_place;
		break;
	case ENERGY_APPLIED_BUT_PARTITION:
		energy_tally_add(&tally, ENERGY_EVENT_PARTITION_KEPT, why);
		message = reply.message_in_place;
		break;
	case ENERGY_APPLIED:
		break;
	}
	if (err_msg && message[0] && _wants_message(job, &settings))
		energy_job_tell(err_msg, message);
}

extern int init(void)
{
	energy_settings_t settings;

	if (!_knows_jobs()) {
		slurm_error("%s: compiled for Slurm %u.%02u.%u, this is %u.%02u.%u: jobs go through "
			    "unchanged; run slurm-energy install --build-plugin, then restart slurmctld",
			    plugin_type, ENERGY_MAJOR(compiled_release), ENERGY_MINOR(compiled_release),
			    ENERGY_MICRO(compiled_release), ENERGY_MAJOR(stated_release),
			    ENERGY_MINOR(stated_release), ENERGY_MICRO(stated_release));
		return SLURM_SUCCESS;
	}
	energy_settings_current(&settings, _complain);
	slurm_info("%s: asks %s, at most %u ms", plugin_type, settings.socket,
		   settings.deadline_milliseconds);
	return SLURM_SUCCESS;
}

extern int fini(void)
{
	_report(true);
	return SLURM_SUCCESS;
}

extern int job_submit(job_desc_msg_t *job_desc, uint32_t submit_uid, char **err_msg)
{
	int saved_errno = errno;

	if (job_desc && _knows_jobs()) {
		_strip(job_desc);
		energy_job_forget_count(job_desc);
		if (!energy_gpu_is_range(job_desc))
			_decide(job_desc, submit_uid, err_msg);
		energy_job_forget_script(job_desc);
		_report(false);
	}
	errno = saved_errno;
	return SLURM_SUCCESS;
}

/* A change of a job is never asked about; only a forged decision is kept out of it. */
extern int job_modify(job_desc_msg_t *job_desc, void *job_ptr, uint32_t submit_uid, char **err_msg)
{
	int saved_errno = errno;

	(void) job_ptr;
	(void) submit_uid;
	(void) err_msg;
	if (job_desc && _knows_jobs()) {
		_strip(job_desc);
		_report(false);
	}
	errno = saved_errno;
	return SLURM_SUCCESS;
}
