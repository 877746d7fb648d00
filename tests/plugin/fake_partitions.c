/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "fake_partitions.h"

#include <slurm/slurmdb.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "job_submit_energy/partition.h"
#include "job_submit_energy/slurm_memory.h"

#define MAX_FAKES 64

typedef struct {
	char *head;
	size_t size, used;
} fake_buffer_t;

slurm_conf_t slurm_conf;
fake_partition_t *default_part_loc;
void *acct_db_conn;

static fake_partition_t partitions[MAX_FAKES];
static size_t num_partitions;
static int packing_error;
static bool is_locked;

slurmdb_assoc_rec_t fake_account;
slurmdb_qos_rec_t fake_qos;

extern fake_partition_t *find_part_record(char *name);
extern void pack_part(fake_partition_t *partition, fake_buffer_t *buffer, uint16_t protocol);
extern fake_buffer_t *slurm_init_buf(uint32_t size);
extern void slurm_pack32(uint32_t value, fake_buffer_t *buffer);
extern void *slurm_xfer_buf_data(fake_buffer_t *buffer);
extern int assoc_mgr_fill_in_assoc(void *connection, slurmdb_assoc_rec_t *association, int enforce,
				   slurmdb_assoc_rec_t **found, bool locked);

extern int assoc_mgr_fill_in_qos(void *connection, slurmdb_qos_rec_t *qos, int enforce, slurmdb_qos_rec_t **found,
				 bool locked);
extern void assoc_mgr_lock(int *kinds);
extern void assoc_mgr_unlock(int *kinds);

extern void fake_partitions(const char *const *names, size_t count)
{
	memset(&fake_account, 0, sizeof(fake_account));
	memset(&fake_qos, 0, sizeof(fake_qos));
	memset(&slurm_conf, 0, sizeof(slurm_conf));
	num_partitions = count;
	for (size_t i = 0; i < count; i++)
		partitions[i] = (fake_partition_t) {
			.name = names[i],
			.max_time = INFINITE,
			.default_time = NO_VAL,
			.max_nodes = INFINITE,
			.total_nodes = 4,
			.total_cpus = 128,
			.max_cpus_per_node = INFINITE,
			.max_cpus_per_socket = INFINITE,
			.max_share = 1,
			.preempt_mode = NO_VAL16,
			.priority_job_factor = 1,
			.priority_tier = 1,
			.state = PARTITION_UP,
			.nodes = "n[1-4]",
		};
	default_part_loc = count ? partitions : NULL;
}

extern fake_partition_t *fake_partition(const char *name)
{
	for (size_t i = 0; i < num_partitions; i++) {
		if (!strcmp(partitions[i].name, name))
			return &partitions[i];
	}
	return NULL;
}

extern void fake_default_partition(const char *name)
{
	default_part_loc = name ? fake_partition(name) : NULL;
}

extern fake_partition_t *find_part_record(char *name)
{
	return fake_partition(name);
}

extern void fake_packing_error(int bytes)
{
	packing_error = bytes;
}

static void _bytes(fake_buffer_t *buffer, const void *bytes, size_t length)
{
	if (buffer->used + length > buffer->size) {
		size_t size = 2 * (buffer->used + length);

		CHECK(slurm_xrecalloc((void **) &buffer->head, size, 1, true, false, NULL, 0, NULL));
		buffer->size = size;
	}
	memcpy(buffer->head + buffer->used, bytes, length);
	buffer->used += length;
}

static void _number(fake_buffer_t *buffer, uint64_t value, size_t length)
{
	unsigned char bytes[8];

	for (size_t i = 0; i < length; i++)
		bytes[i] = (unsigned char) (value >> (8 * (length - 1 - i)));
	_bytes(buffer, bytes, length);
}

static void _text(fake_buffer_t *buffer, const char *text)
{
	size_t length = text ? strlen(text) + 1 : 0;

	_number(buffer, length, 4);
	if (text)
		_bytes(buffer, text, length);
}

extern void pack_part(fake_partition_t *partition, fake_buffer_t *buffer, uint16_t protocol)
{
	_text(buffer, partition->name);
	_number(buffer, 0, 4);
	_number(buffer, 0, 4);
	_number(buffer, partition->max_time, 4);
	_number(buffer, partition->default_time, 4);
	_number(buffer, partition->max_nodes, 4);
	_number(buffer, partition->min_nodes, 4);
	_number(buffer, partition->total_nodes, 4);
	_number(buffer, partition->total_cpus, 4);
	_number(buffer, partition->default_memory, 8);
	_number(buffer, partition->max_cpus_per_node, 4);
	if (protocol >= 39 << 8)
		_number(buffer, partition->max_cpus_per_socket, 4);
	_number(buffer, partition->max_memory, 8);
	_number(buffer, partition->flags, (protocol >= 41 << 8) ? 4 : 2);
	_number(buffer, partition->max_share, 2);
	_number(buffer, NO_VAL16, 2);
	_number(buffer, partition->preempt_mode, 2);
	_number(buffer, partition->priority_job_factor, 2);
	_number(buffer, partition->priority_tier, 2);
	_number(buffer, partition->state, 2);
	_number(buffer, 0, 2);
	_number(buffer, 0, 2);
	_number(buffer, 0, 2);
	_number(buffer, 0, 4);
	_text(buffer, partition->allow_accounts);
	_text(buffer, partition->allow_groups);
	_text(buffer, partition->allow_alloc_nodes);
	_text(buffer, partition->allow_qos);
	_text(buffer, partition->qos);
	_text(buffer, NULL);
	_text(buffer, partition->deny_accounts);
	_text(buffer, partition->deny_qos);
	_text(buffer, partition->nodes);
	_text(buffer, NULL);
	_number(buffer, 4, 4);
	_text(buffer, "0x0F");
	_text(buffer, partition->billing_weights);
	if (protocol >= 43 << 8)
		_text(buffer, "default");
	_text(buffer, "cpu=128,mem=256G,node=4,billing=128");
	_number(buffer, partition->cpus_per_gpu ? 1 : NO_VAL, 4);
	if (partition->cpus_per_gpu) {
		_number(buffer, 1, 2);
		_number(buffer, partition->cpus_per_gpu, 8);
	}
	for (int i = 0; i < packing_error; i++)
		_number(buffer, 0, 1);
	if (packing_error < 0)
		buffer->used -= (size_t) -packing_error;
}

extern fake_buffer_t *slurm_init_buf(uint32_t size)
{
	fake_buffer_t *buffer = calloc(1, sizeof(*buffer));

	buffer->head = slurm_xcalloc(size, 1, true, true, NULL, 0, NULL);
	buffer->size = size;
	if (!buffer->head) {
		free(buffer);
		return NULL;
	}
	return buffer;
}

extern void slurm_pack32(uint32_t value, fake_buffer_t *buffer)
{
	_number(buffer, value, 4);
}

extern void *slurm_xfer_buf_data(fake_buffer_t *buffer)
{
	void *head = buffer->head;

	free(buffer);
	return head;
}

extern size_t fake_pack(const fake_partition_t *partition, uint16_t protocol, char *bytes, size_t size)
{
	fake_buffer_t *buffer = slurm_init_buf(64);
	fake_partition_t copy = *partition;
	size_t length;

	pack_part(&copy, buffer, protocol);
	slurm_pack32(ENERGY_END_MARK_1, buffer);
	slurm_pack32(ENERGY_END_MARK_2, buffer);
	length = buffer->used;
	CHECK(length <= size);
	memcpy(bytes, buffer->head, length);
	slurm_xfree((void **) &buffer->head);
	free(buffer);
	return length;
}

extern int assoc_mgr_fill_in_assoc(void *connection, slurmdb_assoc_rec_t *association, int enforce,
				   slurmdb_assoc_rec_t **found, bool locked)
{
	const fake_partition_t *partition =
		association->partition ? fake_partition(association->partition) : NULL;

	(void) connection;
	(void) enforce;
	CHECK((locked == is_locked) && (association->uid == 1000));
	association->id = (partition && partition->has_association) ? 8 : 7;
	if (found)
		*found = &fake_account;
	return SLURM_SUCCESS;
}

extern int assoc_mgr_fill_in_qos(void *connection, slurmdb_qos_rec_t *qos, int enforce, slurmdb_qos_rec_t **found,
				 bool locked)
{
	(void) connection;
	(void) enforce;
	CHECK(locked && is_locked && (qos->name || qos->id));
	*found = &fake_qos;
	return SLURM_SUCCESS;
}

extern void assoc_mgr_lock(int *kinds)
{
	/* Associations, QOS and users, which is what assoc_mgr_fill_in_assoc() and assoc_mgr_fill_in_qos() want. */
	for (int i = 0; i < 7; i++)
		CHECK(kinds[i] == ((i == 0) || (i == 2) || (i == 5)));
	CHECK(!is_locked);
	is_locked = true;
}

extern void assoc_mgr_unlock(int *kinds)
{
	CHECK(is_locked && (kinds[0] == 1));
	is_locked = false;
}
