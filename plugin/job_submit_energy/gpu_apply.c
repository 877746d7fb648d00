/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A job's description for another number of GPUs.
 *
 * In the job's own texts only the digits change: Slurm 22.05 refuses the same request written in another way. sbatch
 * has put the numbers into the environment of the script too, and srun there would ask for what the job does not have.
 */
#include <slurm/slurm.h>
#include <stdio.h>
#include <string.h>

#include "gpu_count.h"
#include "partition_order.h"
#include "slurm_memory.h"

#define MAX_CHANGES 16
#define MAX_ADDED 2

typedef struct {
	char **place;	/* where the text stands in the job */
	char *text;	/* what is to stand there */
} change_t;

typedef struct {
	size_t count;
	bool failed;
	change_t changes[MAX_CHANGES];
	char *added[MAX_ADDED];	/* variables that the environment lacks */
	size_t num_added;
} changes_t;

static char *_new(size_t size)
{
	return slurm_xcalloc(size, 1, true, true, __FILE__, __LINE__, __func__);
}

static char *_with_number(const char *text, size_t at, size_t length, uint32_t value)
{
	size_t size = strlen(text) + 16;
	char *made = _new(size);

	if (made)
		snprintf(made, size, "%.*s%u%s", (int) at, text, value, text + at + length);
	return made;
}

static void _add(changes_t *all, char **place, char *text)
{
	if (!text || (all->count == MAX_CHANGES)) {
		slurm_xfree((void **) &text);
		all->failed = true;
		return;
	}
	all->changes[all->count++] = (change_t) { place, text };
}

static void _digits(changes_t *all, char **place, uint32_t value)
{
	energy_gpu_digits_t digits;

	if (energy_is_set(*place) && energy_gpu_digits(*place, &digits))
		_add(all, place, _with_number(*place, digits.at, digits.length, value));
}

static char **_variable(job_desc_msg_t *job, const char *name)
{
	size_t length = strlen(name);

	for (uint32_t i = 0; job->environment && (i < job->env_size); i++) {
		char *entry = job->environment[i];

		if (entry && !strncmp(entry, name, length) && (entry[length] == '='))
			return &job->environment[i];
	}
	return NULL;
}

/* A variable that sbatch has set to a number: another one; what it has not set stays away. */
static void _renumber(changes_t *all, job_desc_msg_t *job, const char *name, uint32_t value)
{
	char **place = _variable(job, name);

	if (place)
		_add(all, place, _with_number(*place, strlen(name) + 1, strlen(*place) - strlen(name) - 1, value));
}

/* Such a variable whose number stands behind a type: SLURM_GPUS=a100:4 */
static void _redigit(changes_t *all, job_desc_msg_t *job, const char *name, uint32_t value)
{
	char **place = _variable(job, name);
	const char *last;

	if (!place)
		return;
	last = strrchr(*place, ':');
	last = last ? last + 1 : *place + strlen(name) + 1;
	_add(all, place, _with_number(*place, (size_t) (last - *place), strlen(last), value));
}

static void _set(changes_t *all, job_desc_msg_t *job, const char *name, uint32_t value)
{
	size_t size = strlen(name) + 16;
	char **place = _variable(job, name), *text = _new(size);

	if (text)
		snprintf(text, size, "%s=%u", name, value);
	if (place)
		_add(all, place, text);
	else if (text)
		all->added[all->num_added++] = text;
	else
		all->failed = true;
}

static void _environment(changes_t *all, job_desc_msg_t *job, const energy_gpu_plan_t *plan,
			 const energy_gpu_option_t *option)
{
	if (!job->environment)
		return;
	_set(all, job, "SLURM_ENERGY_GPUS", option->gpus);
	_set(all, job, "SLURM_ENERGY_GPUS_ASKED", plan->asked);
	if (option->gpus == plan->asked)
		return;
	_redigit(all, job, "SLURM_GPUS", option->gpus);
	if (option->gpus_per_node)
		_redigit(all, job, "SLURM_GPUS_PER_NODE", option->gpus_per_node);
	if (option->tasks) {
		_renumber(all, job, "SLURM_NTASKS", option->tasks);
		_renumber(all, job, "SLURM_NPROCS", option->tasks);
	}
	if (option->tasks_per_node)
		_renumber(all, job, "SLURM_NTASKS_PER_NODE", option->tasks_per_node);
}

/* Room for the variables that are added; the array ends with NULL, as slurmd reads it. */
static bool _make_room(job_desc_msg_t *job, size_t added)
{
	return !added || slurm_xrecalloc((void **) &job->environment, (size_t) job->env_size + added + 1,
					 sizeof(char *), true, true, __FILE__, __LINE__, __func__);
}

static void _drop(changes_t *all)
{
	for (size_t i = 0; i < all->count; i++)
		slurm_xfree((void **) &all->changes[i].text);
	for (size_t i = 0; i < all->num_added; i++)
		slurm_xfree((void **) &all->added[i]);
}

static void _numbers(job_desc_msg_t *job, const energy_gpu_option_t *option)
{
	if (energy_is_given32(job->num_tasks))
		job->num_tasks = option->tasks;
	if (energy_is_given16(job->ntasks_per_node))
		job->ntasks_per_node = (uint16_t) option->tasks_per_node;
	if (energy_is_given32(job->min_nodes) && option->nodes) {
		job->min_nodes = option->nodes;
		if (energy_is_given32(job->max_nodes))
			job->max_nodes = option->nodes;
	}
	job->min_cpus = option->min_cpus;
	job->pn_min_memory = option->memory;
	job->time_limit = option->time_limit;
}

extern bool energy_gpu_apply(job_desc_msg_t *job, const energy_gpu_plan_t *plan,
			     const energy_gpu_option_t *option)
{
	changes_t all = { 0 };
	size_t room = job->environment ? MAX_ADDED : 0;

	/* The array first: it moves, and the places of its entries with it. */
	if (!_make_room(job, room))
		return false;
	if (option->gpus != plan->asked) {
		_digits(&all, &job->tres_per_job, option->gpus);
		if (option->gpus_per_node)
			_digits(&all, &job->tres_per_node, option->gpus_per_node);
	}
	_environment(&all, job, plan, option);
	if (all.failed) {
		_drop(&all);
		return false;
	}
	for (size_t i = 0; i < all.count; i++) {
		slurm_xfree((void **) all.changes[i].place);
		*all.changes[i].place = all.changes[i].text;
	}
	for (size_t i = 0; i < all.num_added; i++)
		job->environment[job->env_size++] = all.added[i];
	if (option->gpus != plan->asked)
		_numbers(job, option);
	return true;
}
