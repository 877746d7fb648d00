/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Changes to a job description, all of them in Slurm's own memory. */
#include <slurm/slurm.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "job.h"
#include "partition.h"
#include "slurm_memory.h"

#define TELL_PREFIX "energy: "

/* A new string in Slurm's memory made of three parts, NULL if there is none left. */
static char *_join(const char *first, const char *second, const char *third)
{
	size_t lengths[] = { strlen(first), strlen(second), strlen(third) };
	char *joined = slurm_xcalloc(lengths[0] + lengths[1] + lengths[2] + 1, 1, true, true,
				     __FILE__, __LINE__, __func__);

	if (!joined)
		return NULL;
	memcpy(joined, first, lengths[0]);
	memcpy(joined + lengths[0], second, lengths[1]);
	memcpy(joined + lengths[0] + lengths[1], third, lengths[2]);
	return joined;
}

static void _replace(char **text, char *replacement)
{
	slurm_xfree((void **) text);
	*text = replacement;
}

/* Remove the entries of the job control environment that are meant. Returns how many there were. */
static uint32_t _remove_entries(job_desc_msg_t *job, bool (*is_meant)(const char *entry))
{
	uint32_t kept = 0, stripped = 0;

	if (!job->spank_job_env)
		return 0;
	for (uint32_t i = 0; i < job->spank_job_env_size; i++) {
		char *entry = job->spank_job_env[i];

		if (entry && is_meant(entry)) {
			slurm_xfree((void **) &entry);
			stripped++;
		} else {
			job->spank_job_env[kept++] = entry;
		}
	}
	for (uint32_t i = kept; i < job->spank_job_env_size; i++)
		job->spank_job_env[i] = NULL;
	job->spank_job_env_size = kept;
	if (!kept && stripped)
		slurm_xfree((void **) &job->spank_job_env);
	return stripped;
}

static bool _is_script_entry(const char *entry)
{
	return !strncmp(entry, ENERGY_ENTRY_SCRIPT "=", strlen(ENERGY_ENTRY_SCRIPT "="));
}

extern void energy_job_forget_count(job_desc_msg_t *job)
{
	static const char *const names[] = { "SLURM_ENERGY_GPUS=", "SLURM_ENERGY_GPUS_ASKED=" };
	uint32_t kept = 0;

	for (uint32_t i = 0; job->environment && (i < job->env_size); i++) {
		char *entry = job->environment[i];

		if (entry && (!strncmp(entry, names[0], strlen(names[0])) ||
			      !strncmp(entry, names[1], strlen(names[1]))))
			slurm_xfree((void **) &entry);
		else
			job->environment[kept++] = entry;
	}
	for (uint32_t i = kept; job->environment && (i < job->env_size); i++)
		job->environment[i] = NULL;
	if (job->environment)
		job->env_size = kept;
}

extern uint32_t energy_job_strip(job_desc_msg_t *job)
{
	return _remove_entries(job, energy_is_decision_entry);
}

extern void energy_job_forget_script(job_desc_msg_t *job)
{
	(void) _remove_entries(job, _is_script_entry);
}

extern const char *energy_job_entry(const job_desc_msg_t *job, const char *name)
{
	size_t length = strlen(name);

	if (!job->spank_job_env)
		return NULL;
	for (uint32_t i = job->spank_job_env_size; i > 0; i--) {
		const char *entry = job->spank_job_env[i - 1];

		if (entry && !strncmp(entry, name, length) && (entry[length] == '='))
			return entry + length + 1;
	}
	return NULL;
}

extern bool energy_job_add_decision(job_desc_msg_t *job, const char *value)
{
	uint32_t used = job->spank_job_env ? job->spank_job_env_size : 0;
	char *entry = _join(ENERGY_ENTRY_DECISION, "=", value);

	/* One more than its size: slurmd walks such an array up to its NULL. */
	if (!entry || !slurm_xrecalloc((void **) &job->spank_job_env, (size_t) used + 2,
				       sizeof(char *), true, true, __FILE__, __LINE__, __func__)) {
		slurm_xfree((void **) &entry);
		return false;
	}
	job->spank_job_env[used] = entry;
	job->spank_job_env[used + 1] = NULL;
	job->spank_job_env_size = used + 1;
	return true;
}

static bool _is_set(const char *text)
{
	return text && text[0];
}

static bool _is_count(uint32_t value)
{
	return value && (value != NO_VAL16) && (value != INFINITE16) && (value != NO_VAL) &&
	       (value != INFINITE);
}

/*
 * Whether a preference can only steer the job. Slurm reads --prefer before --constraint at submission: it
 * refuses a job whose preference no node can meet, unless slurm.conf says otherwise, and one that must start
 * at once while the preferred nodes are busy. And the user must have said nothing of the nodes but what the
 * daemon has weighed.
 */
static bool _is_open_to_hints(const job_desc_msg_t *job)
{
	const char *texts[] = {
		job->prefer, job->features, job->req_nodes, job->exc_nodes, job->reservation,
		job->tres_per_socket, job->cpus_per_tres, job->mem_per_tres,
	};
	const uint32_t counts[] = {
		job->pn_min_cpus, job->pn_min_tmp_disk, job->boards_per_node, job->sockets_per_board,
		job->sockets_per_node, job->cores_per_socket, job->threads_per_core,
		job->ntasks_per_board, job->ntasks_per_socket, job->ntasks_per_core,
		job->ntasks_per_tres, job->req_switch, job->contiguous,
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		if (_is_set(texts[i]))
			return false;
	}
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		if (_is_count(counts[i]))
			return false;
	}
	return (job->het_job_offset == NO_VAL) && !job->immediate && energy_cluster_rules().ignores_preferences;
}

extern bool energy_job_prefer(job_desc_msg_t *job, const char *feature)
{
	char *copy;

	if (!_is_open_to_hints(job))
		return true;
	copy = _join(feature, "", "");
	if (copy)
		_replace(&job->prefer, copy);
	return copy != NULL;
}

extern void energy_job_begin(job_desc_msg_t *job, int64_t seconds)
{
	const char *before = energy_job_entry(job, ENERGY_ENTRY_START_BEFORE);
	time_t now = time(NULL), latest;

	/* Only for who named a time by which it must begin, and neither a begin of his own nor a start at once. */
	if ((seconds <= now) || job->begin_time || job->deadline || job->immediate || !before ||
	    (job->het_job_offset != NO_VAL) ||
	    (energy_deadline(before, now, &latest) != ENERGY_DEADLINE_AHEAD) || (seconds > latest))
		return;
	job->begin_time = (time_t) seconds;
}

extern bool energy_job_comment(job_desc_msg_t *job, const char *comment, bool kept)
{
	const char *before = _is_set(job->admin_comment) ? job->admin_comment : "";
	char *text = _join(comment, kept ? ENERGY_COMMENT_KEPT : "", "");
	char *joined = text ? _join(before, before[0] ? "; " : "", text) : NULL;

	slurm_xfree((void **) &text);
	if (joined)
		_replace(&job->admin_comment, joined);
	return joined != NULL;
}

extern void energy_job_tell(char **err_msg, const char *message)
{
	const char *prefix = strncmp(message, TELL_PREFIX, strlen(TELL_PREFIX)) ? TELL_PREFIX : "";
	char *line = _join(prefix, message, ""), *both;

	if (!line || !*err_msg) {
		if (line)
			*err_msg = line;
		return;
	}
	both = _join(*err_msg, "\n", line);
	slurm_xfree((void **) &line);
	if (both)
		_replace(err_msg, both);
}
