/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "reuse.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "exchange.h"
#include "request.h"

#define ID_BYTES 8
#define ID_DIGITS (2 * ID_BYTES)
#define ASKED ENERGY_PROTOCOL " decide\n"
#define COMMENT_PREFIX "energy:"
#define ID_FIELD ";id="

#define NAME_KEY "\nname="

typedef struct {
	size_t at, length;		/* of the job's name in its request; length 0: none, or one with escapes */
} name_t;

typedef struct {
	size_t length;			/* 0: the place is free */
	name_t name;
	int64_t until;			/* milliseconds */
	size_t id_at;			/* place of the decision id in reply.entry */
	char request[ENERGY_REUSE_REQUEST_BYTES];
	energy_reply_t reply;
} kept_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept_t kept[ENERGY_REUSE_ENTRIES];
static char kept_socket[108];		/* where all of it was answered */

static void _forget(void)
{
	for (size_t i = 0; i < ENERGY_REUSE_ENTRIES; i++)
		kept[i].length = 0;
}

/* With the lock held. What another daemon said is no answer of this one. */
static void _follow_socket(const char *socket_path)
{
	if (!strcmp(kept_socket, socket_path))
		return;
	_forget();
	snprintf(kept_socket, sizeof(kept_socket), "%s", socket_path);
}

static kept_t *_find(const char *request, size_t length)
{
	for (size_t i = 0; i < ENERGY_REUSE_ENTRIES; i++) {
		if ((kept[i].length == length) && !memcmp(kept[i].request, request, length))
			return &kept[i];
	}
	return NULL;
}

/* No value has a raw newline, so that a line that begins so is that of the name. */
static name_t _name_in(const char *request, size_t length)
{
	const char *key = memmem(request, length, NAME_KEY, strlen(NAME_KEY)), *end;
	name_t name = { 0, 0 };

	if (!key)
		return name;
	name.at = (size_t) (key - request) + strlen(NAME_KEY);
	end = memchr(request + name.at, '\n', length - name.at);
	if (end && !memchr(request + name.at, '%', (size_t) (end - request) - name.at))
		name.length = (size_t) (end - request) - name.at;
	return name;
}

/* CRC-32 as in zlib: the daemon sets the bits by the same. */
static uint32_t _checksum(const char *bytes, size_t length)
{
	uint32_t value = UINT32_MAX;

	for (size_t i = 0; i < length; i++) {
		value ^= (unsigned char) bytes[i];
		for (int bit = 0; bit < 8; bit++)
			value = (value >> 1) ^ ((value & 1) ? UINT32_C(0xedb88320) : 0);
	}
	return ~value;
}

static bool _must_be_asked(const energy_reply_t *reply, const char *name, size_t length)
{
	uint32_t bit = _checksum(name, length) % ENERGY_NAME_BITS;

	return reply->names[bit / 8] >> (bit % 8) & 1;
}

/* What is kept for a request that is the same but for a name that has no runs. */
static kept_t *_find_but_for_name(const char *request, size_t length, int64_t now)
{
	name_t name = _name_in(request, length);
	size_t rest = length - name.at - name.length;

	for (size_t i = 0; name.length && (i < ENERGY_REUSE_ENTRIES); i++) {
		kept_t *other = &kept[i];

		if (other->length && other->reply.has_names && other->name.length && (now < other->until) &&
		    (other->name.at == name.at) && (other->length - other->name.at - other->name.length == rest) &&
		    !memcmp(other->request, request, name.at) &&
		    !memcmp(other->request + other->name.at + other->name.length, request + name.at + name.length, rest))
			return _must_be_asked(&other->reply, request + name.at, name.length) ? NULL : other;
	}
	return NULL;
}

/* A free place, else the one that ends first. */
static kept_t *_place(void)
{
	kept_t *first = &kept[0];

	for (size_t i = 0; i < ENERGY_REUSE_ENTRIES; i++) {
		if (!kept[i].length)
			return &kept[i];
		if (kept[i].until < first->until)
			first = &kept[i];
	}
	return first;
}

/*
 * Place of the decision id in the entry; 0 unless the id stands exactly where it is replaced, and nowhere else
 * in what the job or its user is given.
 */
static size_t _id_in_entry(const energy_reply_t *reply)
{
	const char *id = reply->decision_id, *field = strstr(reply->entry, ID_FIELD), *at;

	if ((strlen(id) != ID_DIGITS) || !field)
		return 0;
	at = field + strlen(ID_FIELD);
	if (strncmp(at, id, ID_DIGITS) || (at[ID_DIGITS] && (at[ID_DIGITS] != ';')) ||
	    (strstr(reply->entry, id) != at) || strstr(at + 1, id))
		return 0;
	if (strncmp(reply->admin_comment, COMMENT_PREFIX, strlen(COMMENT_PREFIX)) ||
	    strcmp(reply->admin_comment + strlen(COMMENT_PREFIX), id))
		return 0;
	if (strstr(reply->message, id) || strstr(reply->message_in_place, id))
		return 0;
	return (size_t) (at - reply->entry);
}

extern void energy_reuse_keep(const char *socket_path, const char *request, size_t length,
			      const energy_reply_t *reply, int64_t asked_at_milliseconds)
{
	size_t id_at;
	kept_t *place;

	/* A place for the job is chosen from what is free: that is asked about each time. */
	if (!reply->reuse_milliseconds || reply->partition[0] || reply->prefer[0] ||
	    (length > ENERGY_REUSE_REQUEST_BYTES) || (length <= strlen(ASKED)) ||
	    memcmp(request, ASKED, strlen(ASKED)) || !(id_at = _id_in_entry(reply)))
		return;
	pthread_mutex_lock(&lock);
	_follow_socket(socket_path);
	place = _find(request, length);
	if (!place)
		place = _place();
	memcpy(place->request, request, length);
	place->length = length;
	place->name = _name_in(request, length);
	place->until = asked_at_milliseconds + reply->reuse_milliseconds;
	place->id_at = id_at;
	place->reply = *reply;
	pthread_mutex_unlock(&lock);
}

extern void energy_reuse_forget(void)
{
	pthread_mutex_lock(&lock);
	_forget();
	pthread_mutex_unlock(&lock);
}

/* A copy of what is kept for the request. Returns the place of the id in its entry, 0 if nothing is. */
static size_t _copy(const char *socket_path, const char *request, size_t length, int64_t now,
		    energy_reply_t *reply)
{
	size_t id_at = 0;
	kept_t *place;

	pthread_mutex_lock(&lock);
	_follow_socket(socket_path);
	place = _find(request, length);
	if (place && (now >= place->until)) {
		place->length = 0;
		place = NULL;
	}
	if (!place)
		place = _find_but_for_name(request, length, now);
	if (place) {
		*reply = place->reply;
		id_at = place->id_at;
	}
	pthread_mutex_unlock(&lock);
	return id_at;
}

/* A decision id as the daemon makes them. False without random bytes at once. */
static bool _new_id(char id[ID_DIGITS + 1])
{
	unsigned char bytes[ID_BYTES];

	if (getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) != (ssize_t) sizeof(bytes))
		return false;
	for (size_t i = 0; i < ID_BYTES; i++)
		snprintf(id + 2 * i, 3, "%02x", bytes[i]);
	return true;
}

/* The whole request goes along: a daemon that has started since can then still record the job. */
static bool _notify(const char *socket_path, const char *request, size_t length, const char *base,
		  const char *id)
{
	char message[ENERGY_REUSE_REQUEST_BYTES + 160];
	int head = snprintf(message, sizeof(message),
			    ENERGY_PROTOCOL " reused\nbase_decision_id=%s\ndecision_id=%s\n", base, id);
	size_t rest = length - strlen(ASKED);

	if ((head < 0) || ((size_t) head + rest > sizeof(message)))
		return false;
	memcpy(message + head, request + strlen(ASKED), rest);
	return energy_exchange_notify(socket_path, message, (size_t) head + rest);
}

extern bool energy_reuse_answer(const char *socket_path, const char *request, size_t length,
				int64_t now_milliseconds, energy_reply_t *reply)
{
	char id[ID_DIGITS + 1];
	size_t id_at;

	if (length > ENERGY_REUSE_REQUEST_BYTES)
		return false;
	id_at = _copy(socket_path, request, length, now_milliseconds, reply);
	if (!id_at || !_new_id(id))
		return false;
	if (!_notify(socket_path, request, length, reply->decision_id, id)) {
		energy_reuse_forget();
		return false;
	}
	memcpy(reply->decision_id, id, ID_DIGITS);
	memcpy(reply->entry + id_at, id, ID_DIGITS);
	memcpy(reply->admin_comment + strlen(COMMENT_PREFIX), id, ID_DIGITS);
	return true;
}
