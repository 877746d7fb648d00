/* What a GPU does now: power, energy, utilisation, temperature, processes, and its power limit. */
#include "nvml_sim.h"

#include <math.h>
#include <string.h>

#define TEMPERATURE_V1_VERSION 0x100000C
#define FIELD_TOTAL_ENERGY 83
#define FIELD_POWER_AVERAGE 185
#define FIELD_POWER_INSTANT 186
#define VALUE_UNSIGNED_INT 1
#define VALUE_UNSIGNED_LONG_LONG 3
#define PCIE_RECEIVED 1 /* 0: sent */
#define NO_INSTANCE 0xFFFFFFFFu

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low, unsigned int *high);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int milliwatts);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilisation);
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *kib_per_second);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius);
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature);
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *performance_state);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *processes);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *processes);

nvmlReturn_t sim_energy(const struct simgpu_gpu *gpu, unsigned long long *millijoules)
{
	if (sim_has_fault(gpu, SIMGPU_FAULT_SYMBOL_MISSING))
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (sim_has_fault(gpu, SIMGPU_FAULT_ENERGY_UNSUPPORTED))
		return NVML_ERROR_NOT_SUPPORTED;
	if (sim_has_fault(gpu, SIMGPU_FAULT_ENERGY_ERROR))
		return NVML_ERROR_UNKNOWN;
	*millijoules = simgpu_counter_millijoules(gpu);
	return NVML_SUCCESS;
}

static nvmlReturn_t instant_power(const struct simgpu_gpu *gpu, unsigned int *milliwatts)
{
	struct simgpu_operating_point point;

	if (sim_has_fault(gpu, SIMGPU_FAULT_POWER_UNSUPPORTED))
		return NVML_ERROR_NOT_SUPPORTED;
	simgpu_evaluate(gpu, &point);
	*milliwatts = (unsigned int)lround(point.watts * 1000.0);
	return NVML_SUCCESS;
}

/* What boards since Ampere answer: a running average. */
nvmlReturn_t sim_power(const struct simgpu_gpu *gpu, unsigned int *milliwatts)
{
	nvmlReturn_t result = instant_power(gpu, milliwatts);
	struct simgpu_state *state = sim_state();

	if (result == NVML_SUCCESS && state && state->power_averaging_seconds > 0.0)
		*milliwatts = (unsigned int)lround(simgpu_account((struct simgpu_gpu *)gpu)->average_watts * 1000.0);
	return result;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIMGPU_CALL_POWER, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	return sim_end(milliwatts ? sim_power(gpu, milliwatts) : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIMGPU_CALL_ENERGY, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	return sim_end(millijoules ? sim_energy(gpu, millijoules) : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);
	int place;

	if (result != NVML_SUCCESS)
		return result;
	if (!values || count < 0)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	for (place = 0; place < count; place++) {
		nvmlFieldValue_t *value = &values[place];

		value->timestamp = (long long)(simgpu_monotonic_seconds() * 1e6);
		value->latencyUsec = 0;
		switch (value->fieldId) {
		case FIELD_TOTAL_ENERGY:
			value->valueType = VALUE_UNSIGNED_LONG_LONG;
			value->nvmlReturn = sim_energy(gpu, &value->value.ullVal);
			break;
		case FIELD_POWER_AVERAGE:
			value->valueType = VALUE_UNSIGNED_INT;
			value->nvmlReturn = sim_power(gpu, &value->value.uiVal);
			break;
		case FIELD_POWER_INSTANT:
			value->valueType = VALUE_UNSIGNED_INT;
			value->nvmlReturn = instant_power(gpu, &value->value.uiVal);
			break;
		default:
			value->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		}
	}
	return sim_end(NVML_SUCCESS);
}

static nvmlReturn_t limit_of(nvmlDevice_t device, size_t offset, unsigned int *milliwatts)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!milliwatts)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	if (sim_has_fault(gpu, SIMGPU_FAULT_POWER_UNSUPPORTED))
		return sim_end(NVML_ERROR_NOT_SUPPORTED);
	memcpy(milliwatts, (const char *)gpu + offset, sizeof(*milliwatts));
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	return limit_of(device, offsetof(struct simgpu_gpu, power_limit_milliwatts), milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	return limit_of(device, offsetof(struct simgpu_gpu, power_limit_milliwatts), milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	return limit_of(device, offsetof(struct simgpu_gpu, default_limit_milliwatts), milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low, unsigned int *high)
{
	nvmlReturn_t result = limit_of(device, offsetof(struct simgpu_gpu, min_limit_milliwatts), low);

	if (result != NVML_SUCCESS)
		return result;
	return limit_of(device, offsetof(struct simgpu_gpu, max_limit_milliwatts), high);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int milliwatts)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIMGPU_CALL_LIMIT_SET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (sim_has_fault(gpu, SIMGPU_FAULT_LIMIT_ERROR))
		return sim_end(NVML_ERROR_UNKNOWN);
	if (milliwatts < gpu->min_limit_milliwatts || milliwatts > gpu->max_limit_milliwatts)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	gpu->power_limit_milliwatts = milliwatts;
	return sim_end_changed(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilisation)
{
	struct simgpu_operating_point point;
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!utilisation)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	if (sim_has_fault(gpu, SIMGPU_FAULT_MIG))
		return sim_end(NVML_ERROR_NOT_SUPPORTED);
	simgpu_evaluate(gpu, &point);
	utilisation->gpu = (unsigned int)lround(point.utilisation * 100.0);
	utilisation->memory = (unsigned int)lround(fmin(point.work_rate, 2.0) * 50.0);
	return sim_end(NVML_SUCCESS);
}

/* Traffic follows the work: it is what tells a slower program from one whose host keeps time. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *kib_per_second)
{
	struct simgpu_operating_point point;
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!kib_per_second || counter > PCIE_RECEIVED)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	if (sim_has_fault(gpu, SIMGPU_FAULT_MIG))
		return sim_end(NVML_ERROR_NOT_SUPPORTED);
	simgpu_evaluate(gpu, &point);
	*kib_per_second = (unsigned int)lround(point.work_rate * (counter == PCIE_RECEIVED ? 1.5e6 : 0.5e6));
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (sensor != 0 || !celsius)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	*celsius = (unsigned int)lround(simgpu_account(gpu)->temperature_c);
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	unsigned int celsius;
	nvmlReturn_t result;

	if (!temperature)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (temperature->version != TEMPERATURE_V1_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	result = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
	if (result == NVML_SUCCESS)
		temperature->temperature = (int)celsius;
	return result;
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *performance_state)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!performance_state)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	*performance_state = 0; /* data-centre boards stay in P0 */
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *processes)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);
	unsigned int found = 0;
	int slot;

	if (result != NVML_SUCCESS)
		return result;
	if (!count || (*count && !processes))
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++) {
		const struct simgpu_load *load = &gpu->loads[slot];

		if (!load->in_use)
			continue;
		if (found < *count) {
			processes[found].pid = (unsigned int)load->pid;
			processes[found].usedGpuMemory = load->memory_bytes;
			processes[found].gpuInstanceId = NO_INSTANCE;
			processes[found].computeInstanceId = NO_INSTANCE;
		}
		found++;
	}
	result = found > *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	*count = found;
	return sim_end(result);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *processes)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}
