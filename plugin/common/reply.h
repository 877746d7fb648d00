/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Strict reader of the daemon's reply: whatever is not exactly right is garbage as a whole. */
#ifndef ENERGY_REPLY_H
#define ENERGY_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENERGY_REPLY_BYTES 16384
#define ENERGY_ENTRY_BYTES 1024
#define ENERGY_PARTITION_BYTES 1024
#define ENERGY_PREFER_BYTES 64
#define ENERGY_COMMENT_BYTES 256
#define ENERGY_MESSAGE_BYTES 512
#define ENERGY_MAX_REUSE_MILLISECONDS 5000
#define ENERGY_NAME_BITS 1024

typedef enum {
	ENERGY_REPLY_OK,
	ENERGY_REPLY_REFUSED,	/* `refused` or `error`: the daemon is there and says no */
} energy_status_t;

typedef struct {
	energy_status_t status;
	/* Empty where the reply does not name the field. */
	char decision_id[32 + 1];
	char entry[ENERGY_ENTRY_BYTES + 1];
	char partition[ENERGY_PARTITION_BYTES + 1];
	char prefer[ENERGY_PREFER_BYTES + 1];
	char admin_comment[ENERGY_COMMENT_BYTES + 1];
	char message[ENERGY_MESSAGE_BYTES + 1];
	char message_in_place[ENERGY_MESSAGE_BYTES + 1];	/* where the partition is not applied */
	uint32_t gpus;		/* over the whole job; 0: the job's own number stays */
	int64_t begin_time;	/* seconds since 1970 before which the job is not to begin; 0: none */
	bool open;		/* the partitions that the user named are a preference: others may go before them */
	unsigned int reuse_milliseconds;	/* 0: not to be given again; see reuse.h */
	bool has_names;
	/* A bit for each job name that the daemon must be asked about; see reuse.h. */
	unsigned char names[ENERGY_NAME_BITS / 8];
	char reason[128];	/* printable ASCII, for the log */
} energy_reply_t;

/* True once bytes end with the line that closes a reply. */
extern bool energy_reply_complete(const char *bytes, size_t length);

/* Read one whole reply. Returns NULL, or what is wrong with it (a constant text). */
extern const char *energy_reply_parse(const char *bytes, size_t length, energy_reply_t *reply);

#endif
