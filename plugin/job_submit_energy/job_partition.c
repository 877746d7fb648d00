/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The partitions of a job: an answer puts some of them first and takes none away.
 *
 * Slurm tries the partitions of a list in their order where their tiers are equal, and starts the job in any in
 * which it can. So the first one steers, and no job waits for our sake. To those that a user named others are added
 * only where he left them open (--energy-open, or the site's default). Whether Slurm would take the new list as
 * it takes the job's own is looked at in slurmctld (partition_order.h); otherwise the job stays as it came.
 */
#include <slurm/slurm.h>
#include <stdio.h>
#include <string.h>

#include "job.h"
#include "partition.h"
#include "partition_order.h"
#include "slurm_memory.h"

#define MAX_PARTITIONS 32
#define MAX_NAME_BYTES 256

typedef struct {
	size_t count;
	char names[MAX_PARTITIONS][MAX_NAME_BYTES];
} name_list_t;

static bool _has(const name_list_t *names, const char *name)
{
	for (size_t i = 0; i < names->count; i++) {
		if (!strcmp(names->names[i], name))
			return true;
	}
	return false;
}

/* Add the names of a comma list that are not there yet. False if one is empty or too long, or if they are too many. */
static bool _add(name_list_t *names, const char *list)
{
	char name[MAX_NAME_BYTES];

	while (true) {
		size_t length = strcspn(list, ",");

		if (!length || (length >= sizeof(name)))
			return false;
		memcpy(name, list, length);
		name[length] = '\0';
		if (!_has(names, name)) {
			if (names->count == MAX_PARTITIONS)
				return false;
			memcpy(names->names[names->count++], name, length + 1);
		}
		if (!list[length])
			return true;
		list += length + 1;
	}
}

extern bool energy_job_is_tied(const job_desc_msg_t *job)
{
	const char *texts[] = {
		job->req_nodes, job->exc_nodes, job->reservation, job->array_inx, job->burst_buffer,
		job->clusters, job->cluster_features, job->mcs_label,
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		if (energy_is_set(texts[i]))
			return true;
	}
	return job->immediate || (job->het_job_offset != NO_VAL) || energy_is_given32(job->time_min) ||
	       energy_is_given16(job->contiguous);
}

static size_t _place(const name_list_t *names, const char *name)
{
	size_t place = 0;

	while ((place < names->count) && strcmp(names->names[place], name))
		place++;
	return place;
}

/* Read all partitions and say what stands against their order; NULL: nothing does. */
static const char *_examine(energy_order_t *list, const name_list_t *names)
{
	energy_partition_t partitions[MAX_PARTITIONS] = { 0 };
	const char *objection = NULL;

	list->partitions = partitions;
	list->rules = energy_cluster_rules();
	while (!objection && (list->count < names->count)) {
		if (energy_partition_read(names->names[list->count], &partitions[list->count]))
			list->count++;
		else
			objection = "a partition that slurmctld does not have, or not in a form known here";
	}
	if (!objection)
		objection = energy_order_objection(list);
	for (size_t i = 0; i < list->count; i++)
		energy_partition_free(&partitions[i]);
	list->partitions = NULL;
	return objection;
}

static char *_joined(const name_list_t *names)
{
	size_t size = 1, used = 0;
	char *text;

	for (size_t i = 0; i < names->count; i++)
		size += strlen(names->names[i]) + 1;
	text = slurm_xcalloc(size, 1, true, true, __FILE__, __LINE__, __func__);
	for (size_t i = 0; text && (i < names->count); i++)
		used += (size_t) snprintf(text + used, size - used, "%s%s", i ? "," : "", names->names[i]);
	return text;
}

static bool _default_name(name_list_t *names)
{
	energy_partition_t partition = { 0 };
	bool found;

	if (!energy_partition_read(NULL, &partition))
		return false;
	found = _add(names, partition.name.bytes);
	energy_partition_free(&partition);
	return found;
}

static bool _is_same_order(const name_list_t *one, const name_list_t *other)
{
	bool same = (one->count == other->count);

	for (size_t i = 0; same && (i < one->count); i++)
		same = !strcmp(one->names[i], other->names[i]);
	return same;
}

static energy_applied_t _keep(char *why, size_t size, const char *answer, const char *objection)
{
	snprintf(why, size, "%s: %s", answer, objection);
	return ENERGY_APPLIED_BUT_PARTITION;
}

extern energy_applied_t energy_job_partition(job_desc_msg_t *job, uint32_t submit_uid, const char *answer,
					     bool open, char *why, size_t size)
{
	name_list_t own = { 0 }, wanted = { 0 };
	const char *said = energy_job_entry(job, ENERGY_ENTRY_OPEN);
	bool names = energy_is_set(job->partition);
	/* Whichever policy answers, a user who said no keeps his partitions as a condition. */
	bool widens = !names || (open && (!said || !strcmp(said, "on")));
	energy_order_t list = { .job = job, .submit_uid = submit_uid, .widens = widens };
	const char *objection;
	char *text;

	if (energy_job_is_tied(job))
		return _keep(why, size, answer, "the job is tied to nodes or to an order of its own");
	if (names ? !_add(&own, job->partition) : !_default_name(&own))
		return _keep(why, size, answer, "the job's own partitions are not known");
	if (!_add(&wanted, answer))
		return _keep(why, size, answer, "too many partitions");
	for (size_t i = 0; !widens && (i < wanted.count); i++) {
		if (!_has(&own, wanted.names[i]))
			return ENERGY_APPLIED_BUT_FOREIGN;
	}
	list.moved = wanted.count;
	for (size_t i = 0; i < own.count; i++) {
		if (!_add(&wanted, own.names[i]))
			return _keep(why, size, answer, "too many partitions");
	}
	if (_is_same_order(&wanted, &own))
		return ENERGY_APPLIED;
	/*
	 * With EnforcePartLimits=ALL what Slurm says of a job that cannot start now is what its last partition
	 * says, even if that one could never run it.
	 */
	if (energy_cluster_rules().all_must_fit &&
	    strcmp(wanted.names[wanted.count - 1], own.names[own.count - 1]))
		return _keep(why, size, answer, "EnforcePartLimits=ALL and the last partition");
	list.home = _place(&wanted, own.names[0]);
	objection = _examine(&list, &wanted);
	if (objection)
		return _keep(why, size, answer, objection);
	text = _joined(&wanted);
	if (!text)
		return ENERGY_APPLY_NO_MEMORY;
	slurm_xfree((void **) &job->partition);
	job->partition = text;
	return ENERGY_APPLIED;
}
