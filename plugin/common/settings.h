/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The plugin's own small file, key=value lines:
 *
 *	socket=/run/slurm-energy/energyd.sock
 *	deadline_milliseconds=50
 *	message=yes
 *	breaker_failures=3
 *	breaker_seconds=5
 *
 * found as $SLURM_ENERGY_PLUGIN_CONF, else energy-plugin.conf beside $SLURM_CONF, else
 * /etc/slurm-energy/energy-plugin.conf. A line that cannot be used is reported and its default stays.
 */
#ifndef ENERGY_SETTINGS_H
#define ENERGY_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#define ENERGY_SOCKET_BYTES 108		/* sun_path */
#define ENERGY_MAX_DEADLINE_MILLISECONDS 500

typedef struct {
	char socket[ENERGY_SOCKET_BYTES];
	unsigned int deadline_milliseconds;
	bool message;
	unsigned int breaker_failures;
	unsigned int breaker_milliseconds;
} energy_settings_t;

/* Called with each line that was not used as it stands. */
typedef void (*energy_complain_f)(const char *text);

extern void energy_settings_defaults(energy_settings_t *settings);

/* Path of the file from the process's environment. */
extern void energy_settings_path(char *path, size_t size);

/* Read path over the defaults. Returns false if there is no such file. */
extern bool energy_settings_read(const char *path, energy_settings_t *settings,
				 energy_complain_f complain);

/*
 * A copy of the settings, read again when the file has changed; looked at once a second at most. A look that takes longer
 * than 20 ms goes on without the caller, and no other begins before it ends.
 */
extern void energy_settings_current(energy_settings_t *settings, energy_complain_f complain);

#endif
