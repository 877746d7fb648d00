/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exchange.h"
#include "text.h"

#define DEFAULT_PATH "/etc/slurm-energy/energy-plugin.conf"
#define DEFAULT_SOCKET "/run/slurm-energy/energyd.sock"
#define FILE_NAME "energy-plugin.conf"
#define MAX_FILE_BYTES 65536
#define MAX_COMPLAINTS 8
#define LOOK_MILLISECONDS 1000

extern void energy_settings_defaults(energy_settings_t *settings)
{
	*settings = (energy_settings_t) {
		.socket = DEFAULT_SOCKET,
		.deadline_milliseconds = 50,
		.message = true,
		.breaker_failures = 3,
		.breaker_milliseconds = 5000,
	};
}

extern void energy_settings_path(char *path, size_t size)
{
	const char *own = getenv("SLURM_ENERGY_PLUGIN_CONF");
	const char *slurm_conf = getenv("SLURM_CONF");
	const char *slash = slurm_conf ? strrchr(slurm_conf, '/') : NULL;

	if (own && own[0]) {
		snprintf(path, size, "%s", own);
		return;
	}
	if (slash) {
		snprintf(path, size, "%.*s/" FILE_NAME, (int) (slash - slurm_conf), slurm_conf);
		/* `slurmctld -f` sets SLURM_CONF even where the file lies in its usual place */
		if (!access(path, F_OK))
			return;
	}
	snprintf(path, size, DEFAULT_PATH);
}

/*
 * Read digits[.digits] as thousandths. False for anything else, and for more than nine digits
 * before the point; digits after the third are checked and dropped.
 */
static bool _thousandths(const char *text, uint64_t *value)
{
	uint64_t whole = 0, scale = 100, fraction = 0;
	size_t i = 0;

	for (; isdigit((unsigned char) text[i]); i++) {
		if (i >= 9)
			return false;
		whole = whole * 10 + (uint64_t) (text[i] - '0');
	}
	if (!i)
		return false;
	if (text[i] == '.') {
		if (!isdigit((unsigned char) text[++i]))
			return false;
		for (; isdigit((unsigned char) text[i]); i++) {
			fraction += scale * (uint64_t) (text[i] - '0');
			scale /= 10;
		}
	}
	*value = whole * 1000 + fraction;
	return text[i] == '\0';
}

/* Read a whole number between lower and upper. */
static bool _number(const char *text, unsigned int lower, unsigned int upper, unsigned int *value)
{
	uint64_t thousandths;

	if (strchr(text, '.') || !_thousandths(text, &thousandths) ||
	    (thousandths < lower * UINT64_C(1000)) || (thousandths > upper * UINT64_C(1000)))
		return false;
	*value = (unsigned int) (thousandths / 1000);
	return true;
}

/* Each returns NULL, or the bound that the value breaks. */

static const char *_set_socket(energy_settings_t *settings, const char *value)
{
	if ((value[0] != '/') || (strlen(value) >= sizeof(settings->socket)))
		return "an absolute path of at most 107 bytes; ignored";
	snprintf(settings->socket, sizeof(settings->socket), "%s", value);
	return NULL;
}

static const char *_set_deadline(energy_settings_t *settings, const char *value)
{
	unsigned int number;

	if (!_number(value, 1, 999999999, &number))
		return "1 to 500; ignored";
	if (number > ENERGY_MAX_DEADLINE_MILLISECONDS) {
		settings->deadline_milliseconds = ENERGY_MAX_DEADLINE_MILLISECONDS;
		return "1 to 500; 500 is used";
	}
	settings->deadline_milliseconds = number;
	return NULL;
}

static const char *_set_message(energy_settings_t *settings, const char *value)
{
	if (strcmp(value, "yes") && strcmp(value, "no"))
		return "yes or no; ignored";
	settings->message = !strcmp(value, "yes");
	return NULL;
}

static const char *_set_breaker_failures(energy_settings_t *settings, const char *value)
{
	return _number(value, 1, 1000, &settings->breaker_failures) ? NULL : "1 to 1000; ignored";
}

static const char *_set_breaker_seconds(energy_settings_t *settings, const char *value)
{
	uint64_t milliseconds;

	if (!_thousandths(value, &milliseconds) || (milliseconds < 100) ||
	    (milliseconds > 3600000))
		return "0.1 to 3600; ignored";
	settings->breaker_milliseconds = (unsigned int) milliseconds;
	return NULL;
}

static const struct {
	const char *key;
	const char *(*set)(energy_settings_t *settings, const char *value);
} keys[] = {
	{ "socket", _set_socket },
	{ "deadline_milliseconds", _set_deadline },
	{ "message", _set_message },
	{ "breaker_failures", _set_breaker_failures },
	{ "breaker_seconds", _set_breaker_seconds },
};

static const char *_set(energy_settings_t *settings, const char *key, const char *value)
{
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (!strcmp(key, keys[i].key))
			return keys[i].set(settings, value);
	}
	return "socket, deadline_milliseconds, message, breaker_failures or breaker_seconds; ignored";
}

static char *_trim(char *text)
{
	size_t length;

	while (isspace((unsigned char) *text))
		text++;
	length = strlen(text);
	while (length && isspace((unsigned char) text[length - 1]))
		length--;
	text[length] = '\0';
	return text;
}

static const char *_read_line(energy_settings_t *settings, char *line)
{
	char *separator;

	line = _trim(line);
	if (!line[0] || (line[0] == '#'))
		return NULL;
	separator = strchr(line, '=');
	if (!separator)
		return "key=value; ignored";
	*separator = '\0';
	return _set(settings, _trim(line), _trim(separator + 1));
}

static void _read_lines(char *content, const char *path, energy_settings_t *settings,
			energy_complain_f complain)
{
	char *save = NULL;
	unsigned int complaints = 0;

	for (char *line = strtok_r(content, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char shown[96], text[512];
		const char *bound;

		energy_printable(line, strlen(line), shown, sizeof(shown));
		bound = _read_line(settings, line);
		if (!bound || (complaints++ >= MAX_COMPLAINTS))
			continue;
		snprintf(text, sizeof(text), "%.200s: '%s' is not %s", path, shown, bound);
		complain(text);
	}
}

static ssize_t _read_all(int fd, char *content, size_t size)
{
	size_t length = 0;
	ssize_t got;

	while ((length < size) && ((got = read(fd, content + length, size - length)) != 0)) {
		if ((got < 0) && (errno == EINTR))
			continue;
		if (got < 0)
			return -1;
		length += (size_t) got;
	}
	return (ssize_t) length;
}

extern bool energy_settings_read(const char *path, energy_settings_t *settings,
				 energy_complain_f complain)
{
	/* Not blocking, so that a FIFO of that name cannot hold slurmctld. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat status;
	char *content = NULL, text[320];
	ssize_t length = -1;

	energy_settings_defaults(settings);
	if (fd < 0)
		return false;
	if (!fstat(fd, &status) && S_ISREG(status.st_mode) && (status.st_size < MAX_FILE_BYTES) &&
	    (content = malloc(MAX_FILE_BYTES)))
		length = _read_all(fd, content, MAX_FILE_BYTES - 1);
	close(fd);
	if (length >= 0) {
		content[length] = '\0';
		_read_lines(content, path, settings, complain);
	} else {
		snprintf(text, sizeof(text),
			 "%.200s: not a readable file of less than %d bytes; defaults are used",
			 path, MAX_FILE_BYTES);
		complain(text);
	}
	free(content);
	return true;
}

extern void energy_settings_current(energy_settings_t *settings, energy_complain_f complain)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static energy_settings_t kept;
	static struct stat seen;
	static int64_t looked_at;
	static char path[512];
	static bool known;
	int64_t now = energy_now_milliseconds();

	pthread_mutex_lock(&lock);
	if (!known || (now - looked_at >= LOOK_MILLISECONDS)) {
		struct stat status;

		memset(&status, 0, sizeof(status));
		if (!known)
			energy_settings_path(path, sizeof(path));
		if (stat(path, &status))
			memset(&status, 0, sizeof(status));
		if (!known || (status.st_mtim.tv_sec != seen.st_mtim.tv_sec) ||
		    (status.st_mtim.tv_nsec != seen.st_mtim.tv_nsec) ||
		    (status.st_size != seen.st_size) || (status.st_ino != seen.st_ino))
			energy_settings_read(path, &kept, complain);
		seen = status;
		looked_at = now;
		known = true;
	}
	*settings = kept;
	pthread_mutex_unlock(&lock);
}
