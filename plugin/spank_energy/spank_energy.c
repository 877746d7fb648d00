/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Options of sbatch, salloc and srun:
 *
 *	--energy=off|observe|balanced|saver
 *	--energy-max-slowdown=PCT	0 to 200
 *	--energy-deadline=TIME		a time as for --begin
 *	--energy-quiet
 *
 * They reach job_submit/energy in the job control environment. plugstack.conf:
 *
 *	optional /path/to/spank_energy.so
 *
 * On the nodes it does nothing.
 */
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

typedef enum { MODE, MAX_SLOWDOWN, DEADLINE, QUIET, NUM_OPTIONS } option_t;

/* The last value that was given for each option; empty if none was. */
static char values[NUM_OPTIONS][ENERGY_OPTION_BYTES];

static const char *const entries[NUM_OPTIONS] = {
	[MODE] = ENERGY_ENTRY_MODE,
	[MAX_SLOWDOWN] = ENERGY_ENTRY_MAX_SLOWDOWN,
	[DEADLINE] = ENERGY_ENTRY_DEADLINE,
	[QUIET] = ENERGY_ENTRY_QUIET,
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
};

__attribute__((constructor)) static void _follow_release(void)
{
	stated_release = energy_running_release(&stated_release, stated_release);
}

/* Check argument and copy what travels into value. Returns NULL, or the bound that it breaks. */
static const char *_check(option_t which, const char *argument, char *value)
{
	switch (which) {
	case MODE:
		if (!energy_is_mode(argument))
			return "off, observe, balanced or saver";
		break;
	case MAX_SLOWDOWN:
		return energy_is_slowdown(argument, value) ? NULL : "a percentage from 0 to 200";
	case DEADLINE:
		if (!energy_is_deadline(argument))
			return "a time such as 18:00, 2026-03-01T08:00, 0301 or now+2hours";
		break;
	default:
		argument = "1";
		break;
	}
	snprintf(value, ENERGY_OPTION_BYTES, "%s", argument);
	return NULL;
}

static int _option(int which, const char *argument, int remote)
{
	char value[ENERGY_OPTION_BYTES], shown[80];
	const char *bound;

	if (remote || (which < 0) || (which >= NUM_OPTIONS))
		return 0;
	if (!argument)
		argument = "";
	bound = _check((option_t) which, argument, value);
	if (bound) {
		energy_printable(argument, strlen(argument), shown, sizeof(shown));
		slurm_error("--%s=%s is not %s", options[which].name, shown, bound);
		return -1;
	}
	memcpy(values[which], value, sizeof(value));
	return 0;
}

/*
 * A job's environment carries the options it was submitted with, and Slurm reads them back as options
 * of every job that is submitted from inside it. A wish, a deadline above all, is for one job.
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

extern int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	spank_context_t context = spank_context();

	(void) argc;
	(void) argv;
	if ((context == S_CTX_LOCAL) || (context == S_CTX_ALLOCATOR))
		_forget_outer_job();
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
		if (values[i][0] &&
		    (spank_job_control_setenv(spank, entries[i], values[i], 1) != ESPANK_SUCCESS))
			slurm_error("energy: --%s could not be passed on", options[i].name);
	}
	return 0;
}
