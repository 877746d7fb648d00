/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "fake_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_HELD 64
#define REQUEST_BYTES 65536

struct fake_daemon {
	behaviour_t behaviour;
	const char *reply;
	size_t length;
	char folder[64];
	struct sockaddr_un address;
	int listener;
	pthread_t thread;
	atomic_int num_requests;
	atomic_bool stopping;
	char request[REQUEST_BYTES + 1];
	int held[MAX_HELD];
	int num_held;
};

static void _hold(fake_daemon_t *daemon, int fd)
{
	if (daemon->num_held == MAX_HELD) {
		fprintf(stderr, "more than %d connections held\n", MAX_HELD);
		abort();
	}
	daemon->held[daemon->num_held++] = fd;
}

static void _read_request(fake_daemon_t *daemon, int fd)
{
	size_t length = 0;

	while ((length < 5) || memcmp(daemon->request + length - 5, "\nend\n", 5)) {
		ssize_t got = recv(fd, daemon->request + length, REQUEST_BYTES - length, 0);

		if (got <= 0)
			break;
		length += (size_t) got;
	}
	daemon->request[length] = '\0';
	daemon->num_requests++;
}

static void _trickle(fake_daemon_t *daemon, int fd)
{
	for (size_t i = 0; (i < daemon->length) && !daemon->stopping; i++) {
		if (send(fd, daemon->reply + i, 1, MSG_NOSIGNAL) < 0)
			return;
		usleep(10000);
	}
}

static void _pour(int fd)
{
	char line[4096];

	memset(line, 'x', sizeof(line));
	while (send(fd, line, sizeof(line), MSG_NOSIGNAL) > 0)
		;
}

static void _serve(fake_daemon_t *daemon, int fd)
{
	switch (daemon->behaviour) {
	case DAEMON_NEVER_ANSWERS:
		_read_request(daemon, fd);
		_hold(daemon, fd);
		return;
	case DAEMON_NEVER_READS:
		_hold(daemon, fd);
		return;
	case DAEMON_ANSWERS_AND_STAYS:
		_read_request(daemon, fd);
		send(fd, daemon->reply, daemon->length, MSG_NOSIGNAL);
		_hold(daemon, fd);
		return;
	case DAEMON_TRICKLES:
		_read_request(daemon, fd);
		_trickle(daemon, fd);
		break;
	case DAEMON_POURS:
		_read_request(daemon, fd);
		_pour(fd);
		break;
	case DAEMON_ANSWERS_BEFORE_READING:
		send(fd, daemon->reply, daemon->length, MSG_NOSIGNAL);
		_read_request(daemon, fd);
		break;
	case DAEMON_ANSWERS:
		_read_request(daemon, fd);
		send(fd, daemon->reply, daemon->length, MSG_NOSIGNAL);
		break;
	case DAEMON_CLOSES_AT_ONCE:
	case DAEMON_NEVER_ACCEPTS:
		break;
	}
	close(fd);
}

static void *_run(void *argument)
{
	fake_daemon_t *daemon = argument;

	while (!daemon->stopping) {
		int fd = accept4(daemon->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0)
			_serve(daemon, fd);
		else if (errno != EINTR)
			break;
	}
	return NULL;
}

static void _fill_backlog(fake_daemon_t *daemon)
{
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

		if (connect(fd, (struct sockaddr *) &daemon->address, sizeof(daemon->address))) {
			close(fd);
			return;
		}
		_hold(daemon, fd);
	}
}

extern fake_daemon_t *fake_daemon_start(behaviour_t behaviour, const char *reply, size_t length)
{
	fake_daemon_t *daemon = calloc(1, sizeof(*daemon));
	int backlog = (behaviour == DAEMON_NEVER_ACCEPTS) ? 0 : 64;

	daemon->behaviour = behaviour;
	daemon->reply = reply;
	daemon->length = length;
	snprintf(daemon->folder, sizeof(daemon->folder), "/tmp/energy-test-XXXXXX");
	daemon->address.sun_family = AF_UNIX;
	daemon->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (mkdtemp(daemon->folder))
		snprintf(daemon->address.sun_path, sizeof(daemon->address.sun_path), "%s/socket",
			 daemon->folder);
	if (bind(daemon->listener, (struct sockaddr *) &daemon->address, sizeof(daemon->address)) ||
	    listen(daemon->listener, backlog)) {
		perror("fake daemon");
		abort();
	}
	if (behaviour == DAEMON_NEVER_ACCEPTS)
		_fill_backlog(daemon);
	else
		pthread_create(&daemon->thread, NULL, _run, daemon);
	return daemon;
}

extern const char *fake_daemon_socket(const fake_daemon_t *daemon)
{
	return daemon->address.sun_path;
}

extern int fake_daemon_num_requests(fake_daemon_t *daemon)
{
	return daemon->num_requests;
}

extern const char *fake_daemon_last_request(const fake_daemon_t *daemon)
{
	return daemon->request;
}

extern void fake_daemon_stop(fake_daemon_t *daemon)
{
	daemon->stopping = true;
	shutdown(daemon->listener, SHUT_RDWR);
	if (daemon->behaviour != DAEMON_NEVER_ACCEPTS)
		pthread_join(daemon->thread, NULL);
	close(daemon->listener);
	for (int i = 0; i < daemon->num_held; i++)
		close(daemon->held[i]);
	unlink(daemon->address.sun_path);
	rmdir(daemon->folder);
	free(daemon);
}
