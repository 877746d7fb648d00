/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "partition.h"

#include <slurm/slurmdb.h>
#include <string.h>
#include <strings.h>

#include "slurm_memory.h"

/* A packed record with its list of nodes and of accounts is far smaller; a larger one counts as unknown. */
#define MAX_PACKED_BYTES (64 * 1024)
#define OLDEST_PROTOCOL (38 << 8)	/* 22.05 */
#define PROTOCOL_23_02 (39 << 8)
#define PROTOCOL_24_05 (41 << 8)
#define PROTOCOL_25_05 (43 << 8)
#define NEWEST_PROTOCOL (45 << 8)	/* 26.05 */

/*
 * Symbols of slurmctld that no public header declares. All are weak: in a release without one of them the
 * partition is unknown, and the plugin still loads.
 */
#define WEAK __attribute__((weak))

typedef struct energy_slurm_partition slurm_partition_t;
typedef struct energy_slurm_buffer slurm_buffer_t;

extern slurm_conf_t slurm_conf WEAK;
extern slurm_partition_t *default_part_loc WEAK;
extern void *acct_db_conn WEAK;
extern slurm_partition_t *find_part_record(char *name) WEAK;
extern void pack_part(slurm_partition_t *partition, slurm_buffer_t *buffer,
		      uint16_t protocol_version) WEAK;
extern slurm_buffer_t *slurm_init_buf(uint32_t size) WEAK;
extern void slurm_pack32(uint32_t value, slurm_buffer_t *buffer) WEAK;
/* The first up to 25.11, the second from 26.05 on. Either frees the buffer but not what it held. */
extern void *slurm_xfer_buf_data(slurm_buffer_t *buffer) WEAK;
extern void *slurm_xfer_buf_data_ptr(slurm_buffer_t **buffer) WEAK;
extern int assoc_mgr_fill_in_assoc(void *connection, slurmdb_assoc_rec_t *association, int enforce,
				   slurmdb_assoc_rec_t **found, bool locked) WEAK;

extern uint16_t energy_partition_protocol(uint32_t slurm_version)
{
	static const struct {
		uint8_t major, minor, protocol;
	} releases[] = {
		{ 22, 5, 38 }, { 23, 2, 39 }, { 23, 11, 40 }, { 24, 5, 41 },
		{ 24, 11, 42 }, { 25, 5, 43 }, { 25, 11, 44 }, { 26, 5, 45 },
	};
	uint32_t major = SLURM_VERSION_MAJOR(slurm_version);
	uint32_t minor = SLURM_VERSION_MINOR(slurm_version);

	for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
		if ((releases[i].major == major) && (releases[i].minor == minor))
			return (uint16_t) (releases[i].protocol << 8);
	}
	return 0;
}

typedef struct {
	const char *at, *end;
	bool failed;
} reader_t;

static const char *_take(reader_t *reader, size_t length)
{
	const char *taken = reader->at;

	if (reader->failed || ((size_t) (reader->end - reader->at) < length)) {
		reader->failed = true;
		return NULL;
	}
	reader->at += length;
	return taken;
}

static uint64_t _number(reader_t *reader, size_t length)
{
	const char *bytes = _take(reader, length);
	uint64_t value = 0;

	for (size_t i = 0; bytes && (i < length); i++)
		value = (value << 8) | (unsigned char) bytes[i];
	return value;
}

static uint16_t _number16(reader_t *reader)
{
	return (uint16_t) _number(reader, 2);
}

static uint32_t _number32(reader_t *reader)
{
	return (uint32_t) _number(reader, 4);
}

/* A length that counts the final NUL, and the bytes; 0 stands for no text. */
static energy_piece_t _text(reader_t *reader)
{
	uint32_t length = _number32(reader);
	const char *bytes = length ? _take(reader, length) : NULL;

	if (!bytes)
		return (energy_piece_t) { "", 0 };
	if (memchr(bytes, '\0', length) != bytes + length - 1) {
		reader->failed = true;
		return (energy_piece_t) { "", 0 };
	}
	return (energy_piece_t) { bytes, length - 1 };
}

static void _skip_bitmap(reader_t *reader)
{
	if (_number32(reader) != NO_VAL)
		(void) _text(reader);
}

/* Defaults such as DefCpuPerGPU, which are only ever compared. */
static energy_piece_t _defaults(reader_t *reader)
{
	const char *begin = reader->at;
	uint32_t count = _number32(reader);

	if (count != NO_VAL)
		(void) _take(reader, (count > 1000) ? SIZE_MAX / 2 : count * (size_t) 10);
	if (reader->failed)
		return (energy_piece_t) { "", 0 };
	/* No list and an empty one are the same. */
	return (energy_piece_t) { begin + 4, (uint32_t) (reader->at - begin) - 4 };
}

static void _read_numbers(reader_t *reader, uint16_t protocol, energy_partition_t *partition)
{
	(void) _number32(reader);	/* CPU binding */
	(void) _number32(reader);	/* grace time */
	partition->max_time = _number32(reader);
	partition->default_time = _number32(reader);
	partition->max_nodes = _number32(reader);
	partition->min_nodes = _number32(reader);
	partition->total_nodes = _number32(reader);
	partition->total_cpus = _number32(reader);
	partition->default_memory = _number(reader, 8);
	partition->max_cpus_per_node = _number32(reader);
	partition->max_cpus_per_socket = (protocol >= PROTOCOL_23_02) ? _number32(reader) : INFINITE;
	partition->max_memory = _number(reader, 8);
	partition->flags = (protocol >= PROTOCOL_24_05) ? _number32(reader) : _number16(reader);
	partition->max_share = _number16(reader);
	(void) _number16(reader);	/* time over the limit */
	partition->preempt_mode = _number16(reader);
	partition->priority_job_factor = _number16(reader);
	partition->priority_tier = _number16(reader);
	partition->state = _number16(reader);
	(void) _number16(reader);	/* kind of resource */
	(void) _number16(reader);	/* resume and suspend timeouts */
	(void) _number16(reader);
	(void) _number32(reader);	/* suspend time */
}

static void _read_texts(reader_t *reader, uint16_t protocol, energy_partition_t *partition)
{
	partition->allow_accounts = _text(reader);
	partition->allow_groups = _text(reader);
	partition->allow_alloc_nodes = _text(reader);
	partition->allow_qos = _text(reader);
	partition->qos = _text(reader);
	(void) _text(reader);		/* alternate: of partitions that take no jobs */
	partition->deny_accounts = _text(reader);
	partition->deny_qos = _text(reader);
	(void) _text(reader);		/* nodes */
	(void) _text(reader);		/* node sets */
	_skip_bitmap(reader);
	partition->billing_weights = _text(reader);
	if (protocol >= PROTOCOL_25_05)
		(void) _text(reader);	/* topology */
	(void) _text(reader);		/* TRES */
	partition->job_defaults = _defaults(reader);
}

extern bool energy_partition_unpack(const char *bytes, size_t size, uint16_t protocol,
				    energy_partition_t *partition)
{
	reader_t reader = { bytes, bytes + size, false };

	if ((protocol < OLDEST_PROTOCOL) || (protocol > NEWEST_PROTOCOL))
		return false;
	partition->name = _text(&reader);
	_read_numbers(&reader, protocol, partition);
	_read_texts(&reader, protocol, partition);
	if ((_number32(&reader) != ENERGY_END_MARK_1) || (_number32(&reader) != ENERGY_END_MARK_2))
		return false;
	return !reader.failed && partition->name.length;
}

static void *_bytes_of(slurm_buffer_t *buffer)
{
	return slurm_xfer_buf_data_ptr ? slurm_xfer_buf_data_ptr(&buffer) : slurm_xfer_buf_data(buffer);
}

static slurm_partition_t *_find(const char *name)
{
	if (!name)
		return &default_part_loc ? default_part_loc : NULL;
	return find_part_record ? find_part_record((char *) name) : NULL;
}

extern bool energy_partition_read(const char *name, energy_partition_t *partition)
{
	uint16_t protocol = energy_partition_protocol(SLURM_VERSION_NUMBER);
	slurm_partition_t *found;
	slurm_buffer_t *buffer;

	if (!protocol || !pack_part || !slurm_init_buf || !slurm_pack32 ||
	    (!slurm_xfer_buf_data && !slurm_xfer_buf_data_ptr) || !(found = _find(name)) ||
	    !(buffer = slurm_init_buf(MAX_PACKED_BYTES)))
		return false;
	pack_part(found, buffer, protocol);
	slurm_pack32(ENERGY_END_MARK_1, buffer);
	slurm_pack32(ENERGY_END_MARK_2, buffer);
	/* The buffer only grows, and what it had at first was zeroed: so many bytes can be read in any case. */
	partition->packed = _bytes_of(buffer);
	if (!partition->packed)
		return false;
	if (!energy_partition_unpack(partition->packed, MAX_PACKED_BYTES, protocol, partition) ||
	    (name && strcmp(partition->name.bytes, name))) {
		energy_partition_free(partition);
		return false;
	}
	return true;
}

extern void energy_partition_free(energy_partition_t *partition)
{
	slurm_xfree((void **) &partition->packed);
}

extern energy_cluster_rules_t energy_cluster_rules(void)
{
	energy_cluster_rules_t rules = {
		.all_must_fit = true,
		.has_associations = true,
		.limits_memory = true,
		.has_job_defaults = true,
		.default_memory = MEM_PER_CPU | 1,
	};
	const char *scheduling;
	const char *storage;

	if (!&slurm_conf)
		return rules;
	storage = slurm_conf.accounting_storage_type;
	rules.all_must_fit = (slurm_conf.enforce_part_limits == PARTITION_ENFORCE_ALL);
	rules.has_associations = storage && storage[0] && strcasecmp(storage, "accounting_storage/none");
	scheduling = slurm_conf.sched_params;
	rules.ignores_preferences = scheduling && strcasestr(scheduling, "ignore_prefer_validation");
	rules.has_job_defaults = (slurm_conf.job_defaults_list != NULL);
	rules.default_memory = slurm_conf.def_mem_per_cpu;
	rules.limits_memory = slurm_conf.max_mem_per_cpu && (slurm_conf.max_mem_per_cpu != MEM_PER_CPU);
	return rules;
}

/* Number of the association that the job gets if its first partition has such a name; 0: none. */
static bool _association(const job_desc_msg_t *job, uint32_t submit_uid, const char *partition, uint32_t *id)
{
	slurmdb_assoc_rec_t asked;

	/* As slurmctld asks for it when it makes the job; what it fills in stays its own. */
	memset(&asked, 0, sizeof(asked));
	asked.acct = job->account;
	asked.partition = (char *) partition;
	asked.uid = (job->user_id == NO_VAL) ? submit_uid : job->user_id;
	if (assoc_mgr_fill_in_assoc(acct_db_conn, &asked, 0, NULL, false) != SLURM_SUCCESS)
		return false;
	*id = asked.id;
	return true;
}

extern bool energy_has_partition_association(const job_desc_msg_t *job, uint32_t submit_uid,
					     const energy_partition_t *partition)
{
	uint32_t there, elsewhere;

	return !assoc_mgr_fill_in_assoc || !&acct_db_conn ||
	       !_association(job, submit_uid, partition->name.bytes, &there) ||
	       !_association(job, submit_uid, NULL, &elsewhere) || (there != elsewhere);
}
