/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "exchange.h"
#include "text.h"

#define DEFAULT_PATH "/etc/slurm-energy/energy-plugin.conf"
#define DEFAULT_SOCKET "/run/slurm-energy/energyd.sock"
#define FILE_NAME "energy-plugin.conf"
#define MAX_FILE_BYTES 65536
#define MAX_COMPLAINTS 8
#define LOOK_MILLISECONDS 1000
#define LOOK_WAIT_MILLISECONDS 20	/* a look takes a hundredth of that, unless the file system hangs */

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

/*
 * The settings in force, and where they come from. The first look is at slurmctld's start. Later ones are in a thread of
 * their own: the file may lie on a network file system, and one that hangs must not hold slurmctld, whose locks are held.
 */
static pthread_mutex_t current_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t looked;
static energy_settings_t current;
static struct stat seen;
static int64_t looked_at;
static char current_path[512];
static bool is_known, is_looking;

static bool _differs(const struct stat *status)
{
	return (status->st_mtim.tv_sec != seen.st_mtim.tv_sec) || (status->st_mtim.tv_nsec != seen.st_mtim.tv_nsec) ||
	       (status->st_size != seen.st_size) || (status->st_ino != seen.st_ino);
}

static void _stat(struct stat *status)
{
	memset(status, 0, sizeof(*status));
	if (stat(current_path, status))
		memset(status, 0, sizeof(*status));
}

static void *_look(void *complain)
{
	energy_settings_t read;
	struct stat status;
	bool is_new;

	_stat(&status);
	pthread_mutex_lock(&current_lock);
	is_new = _differs(&status);
	pthread_mutex_unlock(&current_lock);
	if (is_new)
		energy_settings_read(current_path, &read, *(energy_complain_f *) complain);
	pthread_mutex_lock(&current_lock);
	if (is_new)
		current = read;
	seen = status;
	is_looking = false;
	pthread_cond_broadcast(&looked);
	pthread_mutex_unlock(&current_lock);
	return NULL;
}

/* With the lock held. Without a thread the settings stay as they are. */
static void _start_look(energy_complain_f complain)
{
	static energy_complain_f to;
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;

	to = complain;
	if (pthread_attr_init(&attributes))
		return;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);	/* signals are slurmctld's own */
	is_looking = !pthread_create(&thread, &attributes, _look, &to);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
}

/* A wall clock that is set makes no wait longer. */
static void _init_looked(void)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&looked, &attributes);
	pthread_condattr_destroy(&attributes);
}

/* With the lock held. Whoever comes while a look is young waits for it too: all have the same settings. */
static void _await_look(void)
{
	int64_t until = looked_at + LOOK_WAIT_MILLISECONDS;
	struct timespec end = { until / 1000, (until % 1000) * 1000000 };

	while (is_looking && !pthread_cond_timedwait(&looked, &current_lock, &end))
		;
}

extern void energy_settings_current(energy_settings_t *settings, energy_complain_f complain)
{
	int64_t now = energy_now_milliseconds();

	pthread_mutex_lock(&current_lock);
	if (!is_known) {
		_init_looked();
		energy_settings_path(current_path, sizeof(current_path));
		_stat(&seen);
		energy_settings_read(current_path, &current, complain);
		is_known = true;
		looked_at = now;
	} else if (!is_looking && (now - looked_at >= LOOK_MILLISECONDS)) {
		looked_at = now;
		_start_look(complain);
	}
	_await_look();
	*settings = current;
	pthread_mutex_unlock(&current_lock);
}
