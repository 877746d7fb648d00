/* Clocks: read, list, lock, reset. */
#include "nvml_sim.h"

#include <string.h>

#define CLOCK_LIMIT_TDP 0xffffff01u
#define CLOCK_LIMIT_UNLIMITED 0xffffff02u
#define REASON_IDLE 1ULL
#define REASON_APPLICATION_CLOCKS 2ULL
#define REASON_POWER_CAP 4ULL

enum { ID_CURRENT = 0, ID_APPLICATION_TARGET = 1, ID_APPLICATION_DEFAULT = 2, ID_BOOST_MAX = 3 };

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz);
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz);
nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz);
nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *clock_mhz);
nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz);
nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz);
nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks_mhz);
nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_clock_mhz,
						  unsigned int *count, unsigned int *clocks_mhz);
nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int low_mhz, unsigned int high_mhz);
nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int sm_mhz);
nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int low_mhz, unsigned int high_mhz);
nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons);
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons);

static uint32_t highest(const struct simgpu_gpu *gpu)
{
	return gpu->clock_count ? gpu->clocks_mhz[gpu->clock_count - 1] : 0;
}

/* The supported clock at or below the wanted one, at least the lowest: what the driver makes of odd values. */
static uint32_t snapped(const struct simgpu_gpu *gpu, uint32_t clock_mhz)
{
	uint32_t step;

	for (step = gpu->clock_count; step-- > 1;)
		if (gpu->clocks_mhz[step] <= clock_mhz)
			return gpu->clocks_mhz[step];
	return gpu->clocks_mhz[0];
}

static nvmlReturn_t clock_of(const struct simgpu_gpu *gpu, unsigned int type, unsigned int id, unsigned int *clock_mhz)
{
	struct simgpu_operating_point point;
	uint32_t sm_mhz = highest(gpu);

	if (!clock_mhz || type > NVML_CLOCK_VIDEO || id > ID_BOOST_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (type == NVML_CLOCK_MEM) {
		*clock_mhz = gpu->memory_clocks_mhz[0];
		return NVML_SUCCESS;
	}
	if (id == ID_CURRENT) {
		simgpu_evaluate(gpu, &point);
		sm_mhz = point.sm_clock_mhz;
	} else if (id == ID_APPLICATION_TARGET && gpu->application_clock_mhz) {
		sm_mhz = gpu->application_clock_mhz;
	}
	*clock_mhz = type == NVML_CLOCK_VIDEO ? sm_mhz * 9 / 10 : sm_mhz;
	return NVML_SUCCESS;
}

static nvmlReturn_t read_clock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *clock_mhz)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIMGPU_CALL_CLOCK_READ, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	return sim_end(clock_of(gpu, type, id, clock_mhz));
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz)
{
	return read_clock(device, type, ID_CURRENT, clock_mhz);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *clock_mhz)
{
	return read_clock(device, type, id, clock_mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz)
{
	return read_clock(device, type, ID_BOOST_MAX, clock_mhz);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz)
{
	return read_clock(device, type, ID_BOOST_MAX, clock_mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz)
{
	return read_clock(device, type, ID_APPLICATION_TARGET, clock_mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *clock_mhz)
{
	return read_clock(device, type, ID_APPLICATION_DEFAULT, clock_mhz);
}

/* As NVML does: tell the number when the room does not suffice. */
static nvmlReturn_t give_list(const uint32_t *from, uint32_t length, int descending, unsigned int *count,
			      unsigned int *to)
{
	uint32_t room;
	uint32_t place;

	if (!count || (*count && !to))
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count;
	*count = length;
	if (room < length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (place = 0; place < length; place++)
		to[place] = from[descending ? place : length - 1 - place];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks_mhz)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	return sim_end(give_list(gpu->memory_clocks_mhz, gpu->memory_clock_count, 1, count, clocks_mhz));
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_clock_mhz,
						  unsigned int *count, unsigned int *clocks_mhz)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);
	uint32_t place;

	if (result != NVML_SUCCESS)
		return result;
	for (place = 0; place < gpu->memory_clock_count; place++)
		if (gpu->memory_clocks_mhz[place] == memory_clock_mhz)
			return sim_end(give_list(gpu->clocks_mhz, gpu->clock_count, 0, count, clocks_mhz));
	return sim_end(NVML_ERROR_NOT_FOUND);
}

/* SUCCESS when the driver will do it. */
static nvmlReturn_t clock_faults(const struct simgpu_gpu *gpu)
{
	if (sim_has_fault(gpu, SIMGPU_FAULT_SYMBOL_MISSING))
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (sim_has_fault(gpu, SIMGPU_FAULT_MIG) || sim_has_fault(gpu, SIMGPU_FAULT_CLOCK_UNSUPPORTED))
		return NVML_ERROR_NOT_SUPPORTED;
	return sim_has_fault(gpu, SIMGPU_FAULT_CLOCK_ERROR) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int low_mhz, unsigned int high_mhz)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIMGPU_CALL_CLOCK_LOCK, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	result = clock_faults(gpu);
	if (result != NVML_SUCCESS)
		return sim_end(result);
	if (high_mhz == CLOCK_LIMIT_TDP || high_mhz == CLOCK_LIMIT_UNLIMITED)
		high_mhz = highest(gpu);
	if (low_mhz > high_mhz || high_mhz > highest(gpu) || high_mhz < gpu->clocks_mhz[0])
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	if (!sim_has_fault(gpu, SIMGPU_FAULT_CLOCK_IGNORED)) {
		gpu->locked_low_mhz = snapped(gpu, low_mhz);
		gpu->locked_high_mhz = snapped(gpu, high_mhz);
	}
	return sim_end_changed(NVML_SUCCESS);
}

/* Whether a reset fails; a fault that strikes once is over with it. */
static nvmlReturn_t reset_faults(struct simgpu_gpu *gpu)
{
	nvmlReturn_t result = clock_faults(gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (sim_has_fault(gpu, SIMGPU_FAULT_RESET_FAILS))
		return NVML_ERROR_UNKNOWN;
	if (!sim_has_fault(gpu, SIMGPU_FAULT_RESET_FAILS_ONCE))
		return NVML_SUCCESS;
	gpu->faults &= ~(1ULL << SIMGPU_FAULT_RESET_FAILS_ONCE);
	return NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIMGPU_CALL_CLOCK_RESET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	result = reset_faults(gpu);
	if (result != NVML_SUCCESS)
		return sim_end(result);
	if (!sim_has_fault(gpu, SIMGPU_FAULT_CLOCK_IGNORED)) {
		gpu->locked_low_mhz = 0;
		gpu->locked_high_mhz = 0;
	}
	return sim_end_changed(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int sm_mhz)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIMGPU_CALL_APPLICATION_SET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	result = clock_faults(gpu);
	if (result != NVML_SUCCESS)
		return sim_end(result);
	if (memory_mhz != gpu->memory_clocks_mhz[0] || snapped(gpu, sm_mhz) != sm_mhz)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	if (!sim_has_fault(gpu, SIMGPU_FAULT_CLOCK_IGNORED))
		gpu->application_clock_mhz = sm_mhz;
	return sim_end_changed(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIMGPU_CALL_APPLICATION_RESET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	result = reset_faults(gpu);
	if (result != NVML_SUCCESS)
		return sim_end(result);
	gpu->application_clock_mhz = 0;
	return sim_end_changed(NVML_SUCCESS);
}

/* Counted, so that a test can see that no process locks memory; it changes nothing here. */
nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int low_mhz, unsigned int high_mhz)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIMGPU_CALL_MEMORY_LOCK, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!gpu->memory_lock_capable)
		return sim_end(NVML_ERROR_NOT_SUPPORTED);
	return sim_end(low_mhz > high_mhz ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIMGPU_CALL_MEMORY_RESET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	return sim_end(gpu->memory_lock_capable ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	struct simgpu_operating_point point;
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);
	uint32_t wanted;

	if (result != NVML_SUCCESS)
		return result;
	if (!reasons)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	simgpu_evaluate(gpu, &point);
	wanted = gpu->locked_high_mhz ? gpu->locked_high_mhz : gpu->application_clock_mhz;
	*reasons = 0;
	if (!point.contexts)
		*reasons |= REASON_IDLE;
	else if (point.sm_clock_mhz < (wanted ? wanted : highest(gpu)))
		*reasons |= REASON_POWER_CAP;
	else if (wanted && wanted < highest(gpu))
		*reasons |= REASON_APPLICATION_CLOCKS;
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}
