/* What a GPU is: names, numbers, memory, modes. */
#include "nvml_sim.h"

#include <stdio.h>
#include <string.h>

#define MEMORY_V2_VERSION 0x02000028
#define DRIVER_RESERVED_BYTES (640ULL << 20)
#define MAX_MIG_DEVICES 7

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length);
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor_number);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major_version, int *minor_version);
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture);
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count);
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode);
nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode);
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode);

static nvmlReturn_t text_of(nvmlDevice_t device, size_t offset, char *to, unsigned int length)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	return sim_end(sim_copy_text(to, length, (const char *)gpu + offset));
}

static nvmlReturn_t number_of(nvmlDevice_t device, size_t offset, unsigned int *to)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!to)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	memcpy(to, (const char *)gpu + offset, sizeof(*to));
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	return text_of(device, offsetof(struct simgpu_gpu, name), name, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	return text_of(device, offsetof(struct simgpu_gpu, serial), serial, length);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor_number)
{
	return number_of(device, offsetof(struct simgpu_gpu, minor_number), minor_number);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture)
{
	return number_of(device, offsetof(struct simgpu_gpu, architecture), architecture);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode)
{
	return number_of(device, offsetof(struct simgpu_gpu, persistence), mode);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin_set(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (mode > 1)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	gpu->persistence = mode;
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!mode)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	*mode = 0;
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!pci)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	memset(pci, 0, sizeof(*pci));
	pci->domain = gpu->pci_domain;
	pci->bus = gpu->pci_bus;
	pci->device = gpu->pci_device;
	pci->pciDeviceId = gpu->pci_device_id;
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", gpu->pci_domain & 0xffff,
		 gpu->pci_bus & 0xff, gpu->pci_device & 0xff);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus & 0xff,
		 gpu->pci_device & 0xff);
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

static unsigned long long used_bytes(const struct simgpu_gpu *gpu)
{
	unsigned long long used = 0;
	int slot;

	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++)
		if (gpu->loads[slot].in_use)
			used += gpu->loads[slot].memory_bytes;
	return used < gpu->memory_bytes - DRIVER_RESERVED_BYTES ? used : gpu->memory_bytes - DRIVER_RESERVED_BYTES;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	memory->total = gpu->memory_bytes;
	memory->used = used_bytes(gpu) + DRIVER_RESERVED_BYTES; /* version 1 counts the driver's part as used */
	memory->free = memory->total - memory->used;
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	if (memory->version != MEMORY_V2_VERSION)
		return sim_end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	memory->total = gpu->memory_bytes;
	memory->reserved = DRIVER_RESERVED_BYTES;
	memory->used = used_bytes(gpu);
	memory->free = memory->total - memory->reserved - memory->used;
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major_version, int *minor_version)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!major_version || !minor_version)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	*major_version = gpu->compute_major;
	*minor_version = gpu->compute_minor;
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!gpu->mig_capable)
		return sim_end(NVML_ERROR_NOT_SUPPORTED);
	if (!current || !pending)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	*current = *pending = (unsigned int)sim_has_fault(gpu, SIMGPU_FAULT_MIG);
	return sim_end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	struct simgpu_gpu *gpu;
	nvmlReturn_t result = sim_begin(device, SIM_QUIET, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return sim_end(NVML_ERROR_INVALID_ARGUMENT);
	*count = gpu->mig_capable ? MAX_MIG_DEVICES : 0;
	return sim_end(NVML_SUCCESS);
}
