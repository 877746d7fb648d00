/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "exchange.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "reply.h"

#define NANOSECONDS_PER_MILLISECOND 1000000
#define RETRY_NANOSECONDS (1 * NANOSECONDS_PER_MILLISECOND)

static int64_t _now_nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

extern int64_t energy_now_milliseconds(void)
{
	return _now_nanoseconds() / NANOSECONDS_PER_MILLISECOND;
}

/* Wait until fd is ready, at most until the deadline. False once the deadline has passed. */
static bool _wait(int fd, short events, int64_t deadline)
{
	for (;;) {
		int64_t left = deadline - _now_nanoseconds();
		struct timespec timeout = { left / 1000000000, left % 1000000000 };
		struct pollfd ready = { .fd = fd, .events = events };
		int rc;

		if (left <= 0)
			return false;
		rc = ppoll(&ready, 1, &timeout, NULL);
		if (rc > 0)
			return true;
		if ((rc < 0) && (errno != EINTR))
			return false;
	}
}

/*
 * Connect without blocking. A unix socket whose backlog is full answers EAGAIN at once and cannot be
 * polled for room, so that case is tried again until the deadline.
 */
static energy_exchange_t _connect(int fd, const struct sockaddr_un *address, int64_t deadline)
{
	for (;;) {
		int64_t left;
		struct timespec pause = { 0, RETRY_NANOSECONDS };

		if (!connect(fd, (const struct sockaddr *) address, sizeof(*address)) ||
		    (errno == EISCONN))
			return ENERGY_EXCHANGE_DONE;
		if ((errno != EAGAIN) && (errno != EINTR) && (errno != EINPROGRESS) &&
		    (errno != EALREADY))
			return ENERGY_EXCHANGE_ABSENT;
		left = deadline - _now_nanoseconds();
		if (left <= 0)
			return ENERGY_EXCHANGE_LATE;
		if (left < pause.tv_nsec)
			pause.tv_nsec = (long) left;
		nanosleep(&pause, NULL);
	}
}

static energy_exchange_t _send(int fd, const char *request, size_t length, int64_t deadline)
{
	while (length) {
		ssize_t sent = send(fd, request, length, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (sent > 0) {
			request += sent;
			length -= (size_t) sent;
		} else if ((sent < 0) && (errno == EAGAIN)) {
			if (!_wait(fd, POLLOUT, deadline))
				return ENERGY_EXCHANGE_LATE;
		} else if ((sent < 0) && ((errno == EPIPE) || (errno == ECONNRESET))) {
			return ENERGY_EXCHANGE_DONE;	/* it may have answered and left */
		} else if ((sent < 0) && (errno != EINTR)) {
			return ENERGY_EXCHANGE_BROKEN;
		}
	}
	return ENERGY_EXCHANGE_DONE;
}

static energy_exchange_t _receive(int fd, char *reply, size_t size, size_t *length,
				  int64_t deadline)
{
	while (!energy_reply_complete(reply, *length)) {
		ssize_t received;

		if (*length == size) {
			errno = EMSGSIZE;
			return ENERGY_EXCHANGE_BROKEN;
		}
		/* Asked before every read, so that a trickle of bytes cannot outlive the deadline. */
		if (!_wait(fd, POLLIN, deadline))
			return ENERGY_EXCHANGE_LATE;
		received = recv(fd, reply + *length, size - *length, MSG_DONTWAIT);
		if (received > 0) {
			*length += (size_t) received;
		} else if (!received) {
			errno = ENODATA;
			return ENERGY_EXCHANGE_BROKEN;
		} else if ((errno != EAGAIN) && (errno != EINTR)) {
			return ENERGY_EXCHANGE_BROKEN;
		}
	}
	return ENERGY_EXCHANGE_DONE;
}

static const char *_reason(energy_exchange_t result, int error_number, char *text, size_t size)
{
	if (result == ENERGY_EXCHANGE_LATE)
		return "no complete answer before the deadline";
	if (error_number == EMSGSIZE)
		return "answer is longer than any reply";
	if (error_number == ENODATA)
		return "closed before the end of the answer";
	return strerror_r(error_number, text, size);
}

extern energy_exchange_t energy_exchange(const char *socket_path, unsigned int deadline_milliseconds,
					 const char *request, size_t request_length,
					 char *reply, size_t reply_size, size_t *reply_length,
					 char *detail, size_t detail_size)
{
	int64_t deadline = _now_nanoseconds() +
			   (int64_t) deadline_milliseconds * NANOSECONDS_PER_MILLISECOND;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	energy_exchange_t result = ENERGY_EXCHANGE_ABSENT;
	char error_text[64];
	int fd, error_number = ENAMETOOLONG;
	size_t path_length = strlen(socket_path);

	*reply_length = 0;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		error_number = errno;
	} else if (path_length < sizeof(address.sun_path)) {
		memcpy(address.sun_path, socket_path, path_length + 1);
		errno = 0;
		result = _connect(fd, &address, deadline);
		if (result == ENERGY_EXCHANGE_DONE)
			result = _send(fd, request, request_length, deadline);
		if (result == ENERGY_EXCHANGE_DONE)
			result = _receive(fd, reply, reply_size, reply_length, deadline);
		error_number = errno;
	}
	if (fd >= 0)
		close(fd);
	detail[0] = '\0';
	if (result != ENERGY_EXCHANGE_DONE)
		snprintf(detail, detail_size, "%s: %s", socket_path,
			 _reason(result, error_number, error_text, sizeof(error_text)));
	return result;
}

extern bool energy_exchange_notify(const char *socket_path, const char *message, size_t length)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t path_length = strlen(socket_path);
	bool sent = false;
	int fd;

	if (path_length >= sizeof(address.sun_path))
		return false;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return false;
	memcpy(address.sun_path, socket_path, path_length + 1);
	/* A message in part, which the daemon could not read, is none. */
	if (!connect(fd, (const struct sockaddr *) &address, sizeof(address)))
		sent = (send(fd, message, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t) length);
	close(fd);
	return sent;
}
