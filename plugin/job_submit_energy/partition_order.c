/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A list of partitions means more to Slurm than its parts: it takes defaults from the first partition, and it
 * refuses lists of which some part does not fit. So every partition of the list is looked at here, and any
 * difference between them that could matter is an objection. A setting that is equal everywhere cannot matter to
 * the order.
 */
#include "partition_order.h"

#include <slurm/slurm.h>
#include <string.h>
#include <strings.h>

#define IGNORED_FLAGS (PART_FLAG_DEFAULT | PART_FLAG_HIDDEN)
/* Newer flags that only Slurm's own scheduler sets and reads are above these. */
#define PLACING_FLAGS UINT32_C(0x000100ff)

static const void *_field(const energy_order_t *list, size_t index, size_t offset)
{
	return (const char *) &list->partitions[index] + offset;
}

/* Whether a partition has to take the job: with EnforcePartLimits=ALL all of them. */
static bool _must_fit(const energy_order_t *list, size_t index)
{
	return (index < list->moved) || list->rules.all_must_fit;
}

/* Whether defaults could be taken from a partition, in this order or in the job's own. */
static bool _gives_defaults(const energy_order_t *list, size_t index)
{
	return (index == list->home) || _must_fit(list, index);
}

static bool _is_same_number(const energy_order_t *list, bool everywhere, size_t offset, size_t size)
{
	for (size_t i = 1; i < list->count; i++) {
		if ((everywhere || _gives_defaults(list, i)) &&
		    memcmp(_field(list, 0, offset), _field(list, i, offset), size))
			return false;
	}
	return true;
}

static bool _is_same_text(const energy_order_t *list, bool everywhere, size_t offset)
{
	const energy_piece_t *first = _field(list, 0, offset);

	for (size_t i = 1; i < list->count; i++) {
		const energy_piece_t *other = _field(list, i, offset);

		if ((everywhere || _gives_defaults(list, i)) &&
		    ((first->length != other->length) || memcmp(first->bytes, other->bytes, first->length)))
			return false;
	}
	return true;
}

#define _SAME_NUMBER(list, everywhere, field)                                   \
	_is_same_number(list, everywhere, offsetof(energy_partition_t, field), \
			sizeof(((energy_partition_t *) 0)->field))
/* Whether a field is the same in all partitions. */
#define SAME(list, field) _SAME_NUMBER(list, true, field)
#define SAME_TEXT(list, field) _is_same_text(list, true, offsetof(energy_partition_t, field))
/* Whether a field is the same in those from which defaults could be taken. */
#define SAME_DEFAULT(list, field) _SAME_NUMBER(list, false, field)
#define SAME_DEFAULT_TEXT(list, field) _is_same_text(list, false, offsetof(energy_partition_t, field))

static bool _is_everybody(energy_piece_t names)
{
	return !names.length || ((names.length == 3) && !strncasecmp(names.bytes, "all", 3));
}

/* Whether a list names exactly this; a name that is not known is in no list. */
static bool _is_listed(energy_piece_t names, const char *name)
{
	size_t length = name ? strlen(name) : 0;
	const char *at = names.bytes;

	while (length && (at < names.bytes + names.length)) {
		size_t item = strcspn(at, ",");

		if ((item == length) && !strncasecmp(at, name, length))
			return true;
		at += item + 1;
	}
	return false;
}

/* Whether everybody, or the job by name, may use each of the partitions that must take it, or all of them. */
static bool _all_allow(const energy_order_t *list, bool everywhere, size_t offset, const char *name)
{
	for (size_t i = 0; i < list->count; i++) {
		const energy_piece_t *allowed = _field(list, i, offset);

		if ((everywhere || _must_fit(list, i)) && !_is_everybody(*allowed) &&
		    !_is_listed(*allowed, name))
			return false;
	}
	return true;
}

/* Slurm stops reading a list at a partition that is closed to the user: none of them may be. */
static const char *_against_user(const energy_order_t *list)
{
	const job_desc_msg_t *job = list->job;
	uint32_t uid = (job->user_id == NO_VAL) ? list->submit_uid : job->user_id;

	for (size_t i = 0; i < list->count; i++) {
		uint32_t flags = list->partitions[i].flags;

		if ((flags & (PART_FLAG_ROOT_ONLY | PART_FLAG_REQ_RESV)) ||
		    ((flags & PART_FLAG_NO_ROOT) && !uid))
			return "RootOnly, DisableRootJobs or ReqResv";
	}
	if (!SAME_TEXT(list, allow_groups) &&
	    !_all_allow(list, true, offsetof(energy_partition_t, allow_groups), NULL))
		return "AllowGroups";
	if (!SAME_TEXT(list, allow_alloc_nodes) &&
	    !_all_allow(list, true, offsetof(energy_partition_t, allow_alloc_nodes), NULL))
		return "AllocNodes";
	return NULL;
}

static const char *_against_access(const energy_order_t *list)
{
	const job_desc_msg_t *job = list->job;

	for (size_t i = 0; i < list->count; i++) {
		if (_gives_defaults(list, i) && (list->partitions[i].state != PARTITION_UP))
			return "State";
	}
	if (!SAME_TEXT(list, allow_accounts) &&
	    !_all_allow(list, false, offsetof(energy_partition_t, allow_accounts), job->account))
		return "AllowAccounts";
	if (!SAME_TEXT(list, allow_qos) &&
	    !_all_allow(list, false, offsetof(energy_partition_t, allow_qos), job->qos))
		return "AllowQos";
	if (!SAME_TEXT(list, deny_accounts) &&
	    !_all_allow(list, false, offsetof(energy_partition_t, deny_accounts), NULL))
		return "DenyAccounts";
	if (!SAME_TEXT(list, deny_qos) &&
	    !_all_allow(list, false, offsetof(energy_partition_t, deny_qos), NULL))
		return "DenyQos";
	/* Limits of accounts must hold for every partition of a list, and a partition's QOS has its own. */
	if (!SAME_TEXT(list, qos))
		return "QoS";
	return _against_user(list);
}

static bool _time_fits(const energy_order_t *list)
{
	uint32_t limit = list->job->time_limit;

	if (limit == NO_VAL) {
		if (!SAME_DEFAULT(list, default_time))
			return false;
		limit = list->partitions[0].default_time;
	}
	for (size_t i = 0; (limit != NO_VAL) && (i < list->count); i++) {
		if (_must_fit(list, i) && (limit > list->partitions[i].max_time))
			return false;
	}
	return true;
}

static bool _nodes_fit(const energy_order_t *list)
{
	const job_desc_msg_t *job = list->job;

	if (!energy_is_given32(job->min_nodes) && !SAME(list, min_nodes))
		return false;
	for (size_t i = 0; i < list->count; i++) {
		const energy_partition_t *partition = &list->partitions[i];
		uint64_t nodes = list->nodes;

		if (!energy_is_given32(job->min_nodes) && (partition->min_nodes > nodes))
			nodes = partition->min_nodes;
		if (_must_fit(list, i) &&
		    ((nodes < partition->min_nodes) || (nodes > partition->max_nodes) ||
		     (nodes > partition->total_nodes) ||
		     (energy_is_given32(job->max_nodes) && (job->max_nodes > partition->max_nodes))))
			return false;
	}
	return true;
}

static bool _is_limit(uint32_t value)
{
	return value && (value != NO_VAL) && (value != INFINITE);
}

/* Every CPU of the job on one node, or in one socket: more than it needs. */
static bool _cpus_fit(const energy_order_t *list)
{
	bool same = SAME(list, max_cpus_per_node) && SAME(list, max_cpus_per_socket);

	for (size_t i = 0; i < list->count; i++) {
		const energy_partition_t *partition = &list->partitions[i];

		if (!_must_fit(list, i))
			continue;
		if (list->cpus > partition->total_cpus)
			return false;
		if (same)
			continue;
		if (_is_limit(partition->max_cpus_per_node) &&
		    (!list->knows_cpus || (list->cpus > partition->max_cpus_per_node)))
			return false;
		if (_is_limit(partition->max_cpus_per_socket) &&
		    (!list->knows_cpus || (list->cpus > partition->max_cpus_per_socket)))
			return false;
	}
	return true;
}

/* Slurm splits a limit of another form, for each CPU or node, into CPUs: only what needs no splitting is judged. */
static bool _memory_fits(const energy_order_t *list)
{
	uint64_t asked = list->job->pn_min_memory;
	bool is_given = (asked != NO_VAL64);

	if (!is_given && !SAME_DEFAULT(list, default_memory))
		return false;
	if (SAME(list, max_memory))
		return true;
	if (!is_given || !asked || (asked & MEM_PER_CPU) || list->rules.limits_memory ||
	    energy_is_set(list->job->mem_per_tres))
		return false;
	for (size_t i = 0; i < list->count; i++) {
		uint64_t limit = list->partitions[i].max_memory;

		if (_must_fit(list, i) && limit && ((limit & MEM_PER_CPU) || (asked > limit)))
			return false;
	}
	return true;
}

static const char *_against_size(const energy_order_t *list)
{
	if (!_time_fits(list))
		return "MaxTime or DefaultTime";
	if (!_nodes_fit(list))
		return "MinNodes or MaxNodes";
	if (!_cpus_fit(list))
		return "MaxCPUsPerNode";
	if (!_memory_fits(list))
		return "MaxMemPerNode or DefMemPerNode";
	if (!SAME_DEFAULT_TEXT(list, job_defaults))
		return "JobDefaults";
	return NULL;
}

/* What Slurm makes of the list as a whole. */
static const char *_against_order(const energy_order_t *list)
{
	const energy_partition_t *first = &list->partitions[0];

	for (size_t i = 1; i < list->count; i++) {
		/* Slurm would try the others before it, whatever their order. */
		if ((list->partitions[i].priority_tier > first->priority_tier) ||
		    (list->partitions[i].priority_job_factor > first->priority_job_factor))
			return "PriorityTier or PriorityJobFactor";
	}
	if (list->rules.has_associations) {
		/* The account pays by the weights of the first one, and its limits may end between the two. */
		if (!SAME_DEFAULT_TEXT(list, billing_weights))
			return "TRESBillingWeights";
		for (size_t i = 0; i < list->count; i++) {
			if (energy_has_partition_association(list->job, list->submit_uid,
							     &list->partitions[i]))
				return "an association for one partition";
		}
	}
	if (!list->widens)
		return NULL;
	/* The user did not ask for the other partition: the job must not be treated otherwise there. */
	if (!SAME(list, priority_tier) || !SAME(list, priority_job_factor))
		return "PriorityTier or PriorityJobFactor";
	if (!SAME(list, min_nodes) || !SAME(list, max_nodes))
		return "MinNodes or MaxNodes";
	if (!SAME(list, max_share) || !SAME(list, preempt_mode))
		return "OverSubscribe or PreemptMode";
	for (size_t i = 1; i < list->count; i++) {
		uint32_t flags = (first->flags ^ list->partitions[i].flags) & PLACING_FLAGS;

		if (flags & ~(uint32_t) IGNORED_FLAGS)
			return "ExclusiveUser, LLN or another flag";
	}
	return NULL;
}

static void _weigh(energy_order_t *list)
{
	const job_desc_msg_t *job = list->job;
	uint64_t cpus_per_task = energy_is_given16(job->cpus_per_task) ? job->cpus_per_task : 1;
	uint64_t tasks = energy_is_given32(job->num_tasks) ? job->num_tasks : 1;
	const char *texts[] = {
		job->cpus_per_tres, job->mem_per_tres, job->tres_per_socket, job->tres_per_task,
	};
	const uint16_t counts[] = {
		job->boards_per_node, job->sockets_per_board, job->sockets_per_node, job->cores_per_socket,
		job->threads_per_core, job->ntasks_per_board, job->ntasks_per_socket, job->ntasks_per_core,
		job->ntasks_per_tres, job->core_spec,
	};

	list->nodes = energy_is_given32(job->min_nodes) ? job->min_nodes : 1;
	if (energy_is_given16(job->ntasks_per_node) && (tasks < list->nodes * job->ntasks_per_node))
		tasks = list->nodes * job->ntasks_per_node;
	if (tasks < list->nodes)
		tasks = list->nodes;
	list->cpus = tasks * cpus_per_task;
	if (energy_is_given32(job->min_cpus) && (list->cpus < job->min_cpus))
		list->cpus = job->min_cpus;
	if (energy_is_given16(job->pn_min_cpus) && (list->cpus < list->nodes * job->pn_min_cpus))
		list->cpus = list->nodes * job->pn_min_cpus;
	list->knows_cpus = !list->partitions[0].job_defaults.length;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		list->knows_cpus &= !energy_is_set(texts[i]);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		list->knows_cpus &= !energy_is_given16(counts[i]);
}

extern const char *energy_order_objection(energy_order_t *list)
{
	const char *objection = _against_access(list);

	_weigh(list);
	if (!objection)
		objection = _against_size(list);
	return objection ? objection : _against_order(list);
}
