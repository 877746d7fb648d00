/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Options of sbatch, salloc and srun:
 *
 *	--energy=off|observe|balanced|saver
 *	--energy-max-slowdown=PCT	0 to 200
 *	--energy-deadline=TIME		a time as for --begin, by the clock and time zone of this host
 *	--energy-start-before=TIME	likewise
 *	--energy-gpus=COUNTS		numbers of GPUs that the job may run with, such as 2-8 or 2,4,8
 *	--energy-quiet
 *	--energy-trials=on|off
 *	--energy-redecide=on|off
 *	--energy-open[=on|off]		the named partition is a preference, others may be tried first
 *	--energy-clusters=LIST		clusters among which energy-sbatch chooses, before sbatch runs
 *	--energy-data=SIZE@CLUSTER	input data, whose way to another cluster it counts
 *
 * They reach job_submit/energy in the job control environment, and with them whether stderr is a
 * terminal: programs that read what sbatch says get nothing more to read. plugstack.conf:
 *
 *	optional /path/to/spank_energy.so
 *
 * On the nodes it does nothing but for batch scripts of jobs that were themselves submitted with --energy-gpus: if the
 * number of GPUs has changed since the submission, the variables that tell it follow.
 */
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../common/counts.h"
#include "../common/options.h"
#include "../common/release.h"
#include "../common/text.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT extern const char plugin_name[];
EXPORT extern const char plugin_type[];
EXPORT extern const unsigned int spank_plugin_version;

const char plugin_name[] = "energy";
const char plugin_type[] = "spank";
const unsigned int spank_plugin_version = 1;

/* In the file, the release it was compiled for; once loaded, that of sbatch or slurmd: ../common/release.h */
static uint32_t stated_release = SLURM_VERSION_NUMBER;
EXPORT extern const uint32_t plugin_version __attribute__((alias("stated_release")));

/* For doctor: this file follows the release of the Slurm that loads it. */
EXPORT extern const uint32_t slurm_energy_follows_release;
const uint32_t slurm_energy_follows_release = 1;

EXPORT extern int slurm_spank_init(spank_t spank, int argc, char **argv);
EXPORT extern int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv);
EXPORT extern int slurm_spank_task_init(spank_t spank, int argc, char **argv);

typedef enum { MODE, MAX_SLOWDOWN, DEADLINE, QUIET, TRIALS, GPUS, REDECIDE, OPEN, START_BEFORE, CLUSTERS, DATA,
	       NUM_OPTIONS } option_t;

#define CALLER_VARIABLE "SLURM_ENERGY_EXPLAIN_CALLER"

#define FEATURES_VARIABLE "SLURM_ENERGY_SCRIPT_FEATURES"

static bool under_energy_sbatch;

/* What energy-sbatch read of the job's script; empty if nothing. */
static char features[ENERGY_SCRIPT_BYTES];

/* The last value that was given for each option; empty if none was. */
static char values[NUM_OPTIONS][ENERGY_OPTION_BYTES];

/* On a node: the job itself was submitted with --energy-gpus. Its environment may be that of another job. */
static bool has_counts;

/* NULL: nothing travels. */
static const char *const entries[NUM_OPTIONS] = {
	[MODE] = ENERGY_ENTRY_MODE,
	[MAX_SLOWDOWN] = ENERGY_ENTRY_MAX_SLOWDOWN,
	[DEADLINE] = ENERGY_ENTRY_DEADLINE,
	[QUIET] = ENERGY_ENTRY_QUIET,
	[TRIALS] = ENERGY_ENTRY_TRIALS,
	[GPUS] = ENERGY_ENTRY_GPUS,
	[REDECIDE] = ENERGY_ENTRY_REDECIDE,
	[OPEN] = ENERGY_ENTRY_OPEN,
	[START_BEFORE] = ENERGY_ENTRY_START_BEFORE,
};

static int _option(int which, const char *argument, int remote);

static struct spank_option options[NUM_OPTIONS] = {
	[MODE] = { "energy", "MODE",
		   "let the energy policy act on the job: off, observe, balanced or saver", 1, MODE,
		   _option },
	[MAX_SLOWDOWN] = { "energy-max-slowdown", "PCT",
			   "accept a run time longer by at most this percentage, 0 to 200", 1,
			   MAX_SLOWDOWN, _option },
	[DEADLINE] = { "energy-deadline", "TIME",
		       "finish by this time (forms as for --begin); lower clocks must not miss it", 1,
		       DEADLINE, _option },
	[QUIET] = { "energy-quiet", NULL, "do not show what was decided about the job", 0, QUIET,
		    _option },
	[TRIALS] = { "energy-trials", "on|off",
		     "let lower clocks be tried for a minute each while the job runs", 1, TRIALS,
		     _option },
	[GPUS] = { "energy-gpus", "COUNTS",
		   "numbers of GPUs that the job may run with, such as 2-8 or 2,4,8, its own among them", 1, GPUS,
		   _option },
	[REDECIDE] = { "energy-redecide", "on|off",
		       "let the job be decided again while it waits, where the site does so", 1, REDECIDE,
		       _option },
	[OPEN] = { "energy-open", "on|off",
		   "let partitions be tried before the named one, among those that may be used", 2, OPEN, _option },
	[START_BEFORE] = { "energy-start-before", "TIME",
			   "let the job begin later, by this time (forms as for --begin), where energy is cheaper then", 1,
			   START_BEFORE, _option },
	[CLUSTERS] = { "energy-clusters", "LIST", "with energy-sbatch: submit to the one of these that costs the least", 1,
		       CLUSTERS, _option },
	[DATA] = { "energy-data", "SIZE@CLUSTER",
		   "with energy-sbatch: input data such as 200GB@a, and the cluster where it lies", 1, DATA, _option },
};

__attribute__((constructor)) static void _follow_release(void)
{
	stated_release = energy_running_release(&stated_release, stated_release);
}

/* Check a deadline and write it as seconds, which mean the same on every host. */
static bool _check_deadline(const char *argument, char *value, char *complaint, size_t size)
{
	time_t now = time(NULL), seconds;
	struct tm here;
	char clock[64];

	switch (energy_deadline(argument, now, &seconds)) {
	case ENERGY_DEADLINE_AHEAD:
		snprintf(value, ENERGY_OPTION_BYTES, "@%lld", (long long) seconds);
		return true;
	case ENERGY_DEADLINE_PASSED:
		if (!localtime_r(&now, &here) ||
		    !strftime(clock, sizeof(clock), "%Y-%m-%dT%H:%M:%S%z", &here))
			clock[0] = '\0';
		snprintf(complaint, size, "has passed: it is %s here", clock);
		return false;
	case ENERGY_DEADLINE_TOO_FAR:
		snprintf(complaint, size, "is more than ten years ahead");
		return false;
	default:
		snprintf(complaint, size, "is not a time such as 18:00, 2026-03-01T08:00, 0301 or now+2hours");
		return false;
	}
}

/* Check argument and copy what travels into value. False with a complaint about what is wrong. */
static bool _check(option_t which, const char *argument, char *value, char *complaint, size_t size)
{
	energy_counts_t counts;

	switch (which) {
	case MODE:
		if (!energy_is_mode(argument)) {
			snprintf(complaint, size, "is not off, observe, balanced or saver");
			return false;
		}
		break;
	case MAX_SLOWDOWN:
		snprintf(complaint, size, "is not a percentage from 0 to 200");
		return energy_is_slowdown(argument, value);
	case GPUS:
		if (!energy_counts_read(argument, &counts) || (strlen(argument) >= ENERGY_OPTION_BYTES)) {
			snprintf(complaint, size, "is not up to 32 numbers of GPUs such as 2-8 or 2,4,8");
			return false;
		}
		break;
	case DEADLINE:
	case START_BEFORE:
		return _check_deadline(argument, value, complaint, size);
	case OPEN:
		if (!argument[0])
			argument = "on";
		/* fall through */
	case TRIALS:
	case REDECIDE:
		if (!energy_is_switch(argument)) {
			snprintf(complaint, size, "is not on or off");
			return false;
		}
		break;
	default:
		argument = "1";
		break;
	}
	snprintf(value, ENERGY_OPTION_BYTES, "%s", argument);
	return true;
}

static int _option(int which, const char *argument, int remote)
{
	char value[ENERGY_OPTION_BYTES], shown[80], complaint[128];

	if (remote && (which == GPUS))
		has_counts = true;
	if (remote || (which < 0) || (which >= NUM_OPTIONS))
		return 0;
	if (!entries[which]) {
		if (!under_energy_sbatch && (which == CLUSTERS))
			slurm_info("energy: --%s has no effect here: submit with energy-sbatch", options[which].name);
		return 0;
	}
	if (!argument)
		argument = "";
	if (!_check((option_t) which, argument, value, complaint, sizeof(complaint))) {
		energy_printable(argument, strlen(argument), shown, sizeof(shown));
		slurm_error("--%s=%s %s", options[which].name, shown, complaint);
		return -1;
	}
	memcpy(values[which], value, sizeof(value));
	return 0;
}

/*
 * A job's environment carries the options it was submitted with, and Slurm reads them back as options
 * of every job that is submitted from inside it. An option, a deadline above all, is for one job.
 */
static void _forget_outer_job(void)
{
	if (!getenv("SLURM_JOB_ID"))
		return;
	for (int i = 0; i < NUM_OPTIONS; i++) {
		char name[128];

		snprintf(name, sizeof(name), "SLURM_SPANK__SLURM_SPANK_OPTION_%s_%s", plugin_name,
			 options[i].name);
		for (char *c = name; *c; c++) {
			if (*c == '-')
				*c = '_';
		}
		unsetenv(name);
	}
}

/* Nor is the number of GPUs of the job around sbatch and salloc that of the new one; srun starts a step of the same. */
static void _forget_outer_count(void)
{
	unsetenv("SLURM_ENERGY_GPUS");
	unsetenv("SLURM_ENERGY_GPUS_ASKED");
}

/*
 * energy-sbatch leaves its own process number, and is our parent then. The variable goes: what is
 * submitted inside the job is not its child.
 */
static void _look_for_energy_sbatch(void)
{
	const char *caller = getenv(CALLER_VARIABLE);

	under_energy_sbatch = caller && (strtol(caller, NULL, 10) == (long) getppid());
	unsetenv(CALLER_VARIABLE);
}

/* Likewise "NUMBER FEATURES": those of another submission are none of this job's. */
static void _look_for_features(void)
{
	const char *given = getenv(FEATURES_VARIABLE);
	char *text = NULL;

	if (given && (strtol(given, &text, 10) == (long) getppid()) && (*text == ' ') &&
	    energy_is_script(text + 1))
		snprintf(features, sizeof(features), "%s", text + 1);
	unsetenv(FEATURES_VARIABLE);
}

extern int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	spank_context_t context = spank_context();

	(void) argc;
	(void) argv;
	if (context == S_CTX_ALLOCATOR)
		_forget_outer_count();
	if ((context == S_CTX_LOCAL) || (context == S_CTX_ALLOCATOR)) {
		_forget_outer_job();
		_look_for_energy_sbatch();
		_look_for_features();
	}
	/* Registered in every context, as SPANK asks, or the nodes would warn of unknown options. */
	for (int i = 0; i < NUM_OPTIONS; i++) {
		if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
			slurm_error("energy: option --%s could not be registered", options[i].name);
	}
	return 0;
}

extern int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	spank_context_t context = spank_context();

	(void) argc;
	(void) argv;
	if ((context != S_CTX_LOCAL) && (context != S_CTX_ALLOCATOR))
		return 0;
	for (int i = 0; i < NUM_OPTIONS; i++) {
		if (entries[i] && values[i][0] &&
		    (spank_job_control_setenv(spank, entries[i], values[i], 1) != ESPANK_SUCCESS))
			slurm_error("energy: --%s could not be passed on", options[i].name);
	}
	if (features[0])
		(void) spank_job_control_setenv(spank, ENERGY_ENTRY_SCRIPT, features, 1);
	if (under_energy_sbatch)
		(void) spank_job_control_setenv(spank, ENERGY_ENTRY_TERMINAL, ENERGY_TERMINAL_EXPLAIN, 1);
	else if (isatty(STDERR_FILENO))
		(void) spank_job_control_setenv(spank, ENERGY_ENTRY_TERMINAL, ENERGY_TERMINAL_IS, 1);
	return 0;
}

static bool _number(spank_t spank, const char *name, uint32_t *value)
{
	char text[16];
	energy_counts_t counts;

	if ((spank_getenv(spank, name, text, sizeof(text)) != ESPANK_SUCCESS) || !energy_counts_read(text, &counts) ||
	    (counts.count != 1))
		return false;
	*value = counts.values[0];
	return true;
}

/* Set a variable that is there; a type of GPU before its number stays. */
static void _renumber(spank_t spank, const char *name, uint32_t value)
{
	char text[256], changed[288];
	const char *colon;

	if (spank_getenv(spank, name, text, sizeof(text)) != ESPANK_SUCCESS)
		return;
	colon = strrchr(text, ':');
	snprintf(changed, sizeof(changed), "%.*s%u", colon ? (int) (colon - text) + 1 : 0, text, value);
	(void) spank_setenv(spank, name, changed, 1);
}

/* As many tasks for each GPU as before; a number that was none for each GPU stays. */
static void _follow(spank_t spank, const char *name, uint32_t before, uint32_t now)
{
	uint32_t tasks;

	if (_number(spank, name, &tasks) && (tasks > 1) && !(tasks % before))
		_renumber(spank, name, tasks / before * now);
}

extern int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	uint32_t step = 0, nodes = 0, before = 0, now = 0;

	(void) argc;
	(void) argv;
	if (!has_counts || (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS) ||
	    (step != SLURM_BATCH_SCRIPT) || !_number(spank, "SLURM_ENERGY_GPUS", &before) ||
	    !_number(spank, "SLURM_GPUS_ON_NODE", &now))
		return 0;
	/* What this node has says nothing of the others'. SPANK itself tells a batch step of no nodes. */
	if (!_number(spank, "SLURM_NNODES", &nodes) || (nodes != 1) || (now == before))
		return 0;
	_renumber(spank, "SLURM_ENERGY_GPUS", now);
	_renumber(spank, "SLURM_GPUS", now);
	_renumber(spank, "SLURM_GPUS_PER_NODE", now);
	_follow(spank, "SLURM_NTASKS", before, now);
	_follow(spank, "SLURM_NPROCS", before, now);
	_follow(spank, "SLURM_NTASKS_PER_NODE", before, now);
	return 0;
}
