/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which release of Slurm loads a plugin, and which one it was compiled for.
 *
 * Slurm loads a plugin only if its plugin_version has Slurm's own major, minor and micro number (SPANK:
 * major and minor). Else slurmctld stops for a job_submit plugin, and sbatch prints an error each time for
 * a SPANK plugin: an ordinary update of Slurm would stop the cluster. So a plugin takes the number of the
 * Slurm that loads it, as it is loaded, and judges by itself what it may do there:
 *
 *	- same major and minor: everything. What is compiled into the plugin are the layouts of
 *	  job_desc_msg_t and slurm_conf_t, which have not changed in any micro release of 22.05 to 26.05.
 *	- another one: job_submit looks at nothing of the job and says so in the log; SPANK continues, since
 *	  what it uses of spank.h is the same in all of them.
 */
#ifndef ENERGY_RELEASE_H
#define ENERGY_RELEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A release as slurm_version.h numbers it: major, minor and micro, a byte each. */
#define ENERGY_MAJOR(release) ((release) >> 16 & 0xff)
#define ENERGY_MINOR(release) ((release) >> 8 & 0xff)
#define ENERGY_MICRO(release) ((release) & 0xff)
#define ENERGY_SAME_LAYOUT(one, other) (((one) & 0xffff00) == ((other) & 0xffff00))

/*
 * Release of the Slurm whose process this is, as stated by a plugin of its own that it has loaded already.
 * own - this plugin's number, which is not asked
 * otherwise - what to return where nothing states it
 */
extern uint32_t energy_running_release(const uint32_t *own, uint32_t otherwise);

#endif
