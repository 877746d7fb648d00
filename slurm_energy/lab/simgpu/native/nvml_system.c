/* Initialisation, handles, and the way in and out of every call. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct nvmlDevice_st {
	uint32_t index;
};

static struct nvmlDevice_st handles[SIMGPU_MAX_GPUS];
static struct nvmlDevice_st slices[SIMGPU_MAX_GPUS]; /* in MIG mode a GPU has one slice */
static struct simgpu_state *mapped;
static unsigned int users;
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;

nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlShutdown(void);
const char *nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length);
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
nvmlReturn_t nvmlDeviceGetCount(unsigned int *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig);

struct simgpu_state *sim_state(void)
{
	return __atomic_load_n(&users, __ATOMIC_ACQUIRE) ? mapped : NULL;
}

nvmlReturn_t sim_copy_text(char *to, unsigned int length, const char *text)
{
	size_t need = strlen(text) + 1;

	if (!to)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (length < need)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, text, need);
	return NVML_SUCCESS;
}

static int blocks(const struct simgpu_gpu *gpu, int call)
{
	switch (call) {
	case SIMGPU_CALL_ENERGY:
		return sim_has_fault(gpu, SIMGPU_FAULT_ENERGY_BLOCKS);
	case SIMGPU_CALL_POWER:
		return sim_has_fault(gpu, SIMGPU_FAULT_POWER_BLOCKS);
	case SIMGPU_CALL_CLOCK_LOCK:
	case SIMGPU_CALL_CLOCK_RESET:
		return sim_has_fault(gpu, SIMGPU_FAULT_CLOCK_BLOCKS);
	default:
		return 0;
	}
}

/* Sleep as a hung driver does, without holding up others; return with the lock taken again. */
static int block(struct simgpu_state *state, const struct simgpu_gpu *gpu)
{
	struct timespec left;

	left.tv_sec = (time_t)gpu->block_seconds;
	left.tv_nsec = (long)((gpu->block_seconds - (double)left.tv_sec) * 1e9);
	simgpu_unlock(state);
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	return simgpu_lock(state);
}

nvmlReturn_t sim_begin(nvmlDevice_t device, int call, struct simgpu_gpu **gpu)
{
	struct simgpu_state *state = sim_state();
	uint32_t index;

	if (!state)
		return NVML_ERROR_UNINITIALIZED;
	for (index = 0; index < state->gpu_count && device != &handles[index]; index++)
		;
	if (index >= state->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*gpu = &state->gpus[index];
	if (simgpu_lock(state))
		return NVML_ERROR_TIMEOUT;
	if (call >= 0)
		(*gpu)->calls[call]++;
	if (blocks(*gpu, call) && block(state, *gpu))
		return NVML_ERROR_TIMEOUT;
	simgpu_settle(state, index);
	if (sim_has_fault(*gpu, SIMGPU_FAULT_LOST))
		return sim_end(NVML_ERROR_GPU_IS_LOST);
	return NVML_SUCCESS;
}

nvmlReturn_t sim_begin_set(nvmlDevice_t device, int call, struct simgpu_gpu **gpu)
{
	nvmlReturn_t result = sim_begin(device, call, gpu);

	if (result == NVML_SUCCESS && (geteuid() != 0 || sim_has_fault(*gpu, SIMGPU_FAULT_NO_PERMISSION)))
		return sim_end(NVML_ERROR_NO_PERMISSION);
	return result;
}

nvmlReturn_t sim_end(nvmlReturn_t result)
{
	simgpu_unlock(mapped);
	return result;
}

nvmlReturn_t sim_end_changed(nvmlReturn_t result)
{
	simgpu_changed(mapped);
	return sim_end(result);
}

static nvmlReturn_t attach(void)
{
	struct simgpu_state *state = NULL;
	Dl_info own;
	uint32_t index;
	int rc;

	rc = simgpu_attach_node(dladdr((void *)(uintptr_t)nvmlInit_v2, &own) ? own.dli_fname : NULL, &state);
	if (rc == EINVAL)
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	if (rc == EACCES || rc == EPERM)
		return NVML_ERROR_NO_PERMISSION;
	if (rc)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	for (index = 0; index < SIMGPU_MAX_GPUS; index++)
		handles[index].index = slices[index].index = index;
	simgpu_detach(mapped);
	mapped = state;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t result = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&users_lock);
	if (!users)
		result = attach();
	if (result == NVML_SUCCESS)
		__atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&users_lock);
	return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

/* The map stays until the next start: another thread may still be inside a call that blocks. */
nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&users_lock);
	if (users) {
		__atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE);
		result = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&users_lock);
	return result;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NO_PERMISSION:
		return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT:
		return "Timeout";
	case NVML_ERROR_FUNCTION_NOT_FOUND:
		return "Function Not Found";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
		return "RM has detected an NVML/RM version mismatch.";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
		return "Argument version mismatch";
	default:
		return "Unknown Error";
	}
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	struct simgpu_state *state = sim_state();

	return state ? sim_copy_text(version, length, state->driver_version) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	struct simgpu_state *state = sim_state();
	char text[96];

	if (!state)
		return NVML_ERROR_UNINITIALIZED;
	snprintf(text, sizeof(text), "13.%s", state->driver_version);
	return sim_copy_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!sim_state())
		return NVML_ERROR_UNINITIALIZED;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = 13000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	struct simgpu_state *state = sim_state();

	if (!state)
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = state->gpu_count;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	struct simgpu_state *state = sim_state();
	struct simgpu_gpu *gpu;
	nvmlReturn_t result;

	if (!state)
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= state->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = sim_begin(&handles[index], SIMGPU_CALL_HANDLE, &gpu);
	if (result != NVML_SUCCESS)
		return result;
	*device = &handles[index];
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	struct simgpu_state *state = sim_state();
	unsigned int index;

	if (!state)
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (index = 0; index < state->gpu_count; index++) {
		const struct simgpu_gpu *gpu = &state->gpus[index];

		if (!strcmp(uuid, gpu->uuid))
			return nvmlDeviceGetHandleByIndex_v2(index, device);
		if (sim_has_fault(gpu, SIMGPU_FAULT_MIG) && !strncmp(uuid, "MIG-", 4) &&
		    !strcmp(uuid + 4, gpu->uuid + 4))
			return nvmlDeviceGetMigDeviceHandleByIndex(&handles[index], 0, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	struct simgpu_state *state = sim_state();
	unsigned int index;

	if (!state)
		return NVML_ERROR_UNINITIALIZED;
	if (!serial || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (index = 0; index < state->gpu_count; index++)
		if (!strcmp(serial, state->gpus[index].serial))
			return nvmlDeviceGetHandleByIndex_v2(index, device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	struct simgpu_state *state = sim_state();
	unsigned int domain = 0, bus, slot, function, index;

	if (!state)
		return NVML_ERROR_UNINITIALIZED;
	if (!bus_id || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) {
		domain = 0;
		if (sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) != 3)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (index = 0; index < state->gpu_count; index++) {
		const struct simgpu_gpu *gpu = &state->gpus[index];

		if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot)
			return nvmlDeviceGetHandleByIndex_v2(index, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!index)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	*index = device->index;
	return sim_end(NVML_SUCCESS);
}

static int is_slice(nvmlDevice_t device)
{
	struct simgpu_state *state = sim_state();
	uint32_t index;

	for (index = 0; state && index < state->gpu_count; index++)
		if (device == &slices[index])
			return 1;
	return 0;
}

/* GPU-1234 has, in MIG mode, the slice MIG-1234; power, energy and clocks of a slice are INVALID_ARGUMENT. */
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	struct simgpu_gpu *gpu;
	char text[SIMGPU_NAME_BYTES];
	int slice = is_slice(device);
	nvmlReturn_t result = sim_begin(slice ? &handles[device->index] : device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	memcpy(text, gpu->uuid, sizeof(text));
	text[sizeof(text) - 1] = '\0';
	if (slice)
		memcpy(text, "MIG", 3);
	return sim_end(sim_copy_text(uuid, length, text));
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!mig)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	if (!sim_has_fault(gpu, SIMGPU_FAULT_MIG))
		return sim_end(NVML_ERROR_NOT_SUPPORTED);
	if (index > 0)
		return sim_end(NVML_ERROR_NOT_FOUND);
	*mig = &slices[device->index];
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	if (!sim_state())
		return NVML_ERROR_UNINITIALIZED;
	if (!device || !is_slice(mig))
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &handles[mig->index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
	if (!sim_state())
		return NVML_ERROR_UNINITIALIZED;
	if (!is_mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*is_mig = (unsigned int)is_slice(device);
	return NVML_SUCCESS;
}
