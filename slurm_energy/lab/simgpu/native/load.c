/* Who loads a GPU, and what tests switch on it. */
#define _GNU_SOURCE
#include "simgpu.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Return the process' start time, 0 if it is gone or a zombie, 1 if it lives and /proc tells nothing. */
static uint64_t process_start(int32_t pid)
{
	char path[64];
	char line[1024];
	unsigned long long start = 0;
	char process_state = 'Z';
	char *after_name;
	size_t length = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return kill(pid, 0) && errno == ESRCH ? 0 : 1;
	length = fread(line, 1, sizeof(line) - 1, file);
	fclose(file);
	line[length] = '\0';
	after_name = strrchr(line, ')'); /* the name itself may hold blanks and brackets */
	if (!after_name ||
	    sscanf(after_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		   &process_state, &start) != 2)
		return 0;
	return process_state == 'Z' || process_state == 'X' ? 0 : start;
}

uint64_t simgpu_pid_namespace(void)
{
	struct stat status;

	return stat("/proc/self/ns/pid", &status) ? 0 : (uint64_t)status.st_ino;
}

void simgpu_drop_dead_loads(struct simgpu_gpu *gpu)
{
	uint64_t own = 0;
	int slot;

	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++) {
		struct simgpu_load *load = &gpu->loads[slot];
		uint64_t start;

		if (!load->in_use || load->pid <= 0)
			continue;
		if (!own)
			own = simgpu_pid_namespace();
		if (load->pid_namespace != own)
			continue;
		start = process_start(load->pid);
		if (start == 0 || (start != 1 && load->pid_start > 1 && start != load->pid_start))
			load->in_use = 0;
	}
}

/* Return the slot, or -1 when all are taken or the curve means nothing. */
int simgpu_load_add(struct simgpu_state *state, uint32_t index, const struct simgpu_load *wanted)
{
	struct simgpu_gpu *gpu = &state->gpus[index];
	int slot;

	if (index >= state->gpu_count || !(wanted->curve.reference_clock_mhz > 0.0) ||
	    !(wanted->curve.memory_share + wanted->curve.compute_share + wanted->curve.fixed_share > 0.0) ||
	    !(wanted->utilisation >= 0.0 && wanted->utilisation <= 1.0) || !simgpu_rhythm_usable(&wanted->rhythm))
		return -1;
	simgpu_settle(state, index);
	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++) {
		struct simgpu_load *load = &gpu->loads[slot];

		if (load->in_use)
			continue;
		*load = *wanted;
		load->in_use = 0;
		load->default_clock_mhz = simgpu_default_clock(gpu, load);
		if (load->pid > 0) {
			load->pid_start = process_start(load->pid);
			load->pid_namespace = simgpu_pid_namespace();
		}
		simgpu_account(gpu)->done_seconds[slot] = 0.0;
		__atomic_store_n(&load->in_use, 1, __ATOMIC_RELEASE);
		simgpu_changed(state);
		return slot;
	}
	return -1;
}

void simgpu_load_remove(struct simgpu_state *state, uint32_t index, int slot)
{
	if (index >= state->gpu_count || slot < 0 || slot >= SIMGPU_MAX_LOADS)
		return;
	simgpu_settle(state, index);
	state->gpus[index].loads[slot].in_use = 0;
	simgpu_changed(state);
}

void simgpu_load_pause(struct simgpu_state *state, uint32_t index, int slot, uint32_t paused)
{
	if (index >= state->gpu_count || slot < 0 || slot >= SIMGPU_MAX_LOADS)
		return;
	simgpu_settle(state, index);
	state->gpus[index].loads[slot].paused = paused;
	simgpu_changed(state);
}

int simgpu_fault_set(struct simgpu_state *state, uint32_t index, uint32_t fault, uint32_t on)
{
	struct simgpu_gpu *gpu = &state->gpus[index];
	uint64_t bit = 1ULL << (fault & 63);

	if (index >= state->gpu_count || fault >= SIMGPU_FAULT_COUNT)
		return EINVAL;
	simgpu_settle(state, index);
	if (on && fault == SIMGPU_FAULT_ENERGY_STUCK && !(gpu->faults & bit))
		gpu->stuck_joules = (double)simgpu_counter_millijoules(gpu) / 1000.0;
	if (on && fault == SIMGPU_FAULT_ENERGY_RESET && !(gpu->faults & bit))
		gpu->counter_offset_joules = simgpu_account(gpu)->published_joules;
	gpu->faults = on ? gpu->faults | bit : gpu->faults & ~bit;
	simgpu_changed(state);
	return 0;
}

/* What a reboot does: locks and limits are forgotten, the counter starts at 0. */
void simgpu_driver_reload(struct simgpu_state *state, uint32_t index)
{
	struct simgpu_gpu *gpu = &state->gpus[index];

	if (index >= state->gpu_count)
		return;
	simgpu_settle(state, index);
	gpu->locked_low_mhz = 0;
	gpu->locked_high_mhz = 0;
	gpu->application_clock_mhz = 0;
	gpu->power_limit_milliwatts = gpu->default_limit_milliwatts;
	gpu->counter_offset_joules = simgpu_account(gpu)->published_joules;
	simgpu_changed(state);
}
