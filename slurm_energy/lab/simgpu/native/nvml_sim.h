/* NVML's own types and codes, as its binding declares them, and what the files of the simulated library share. */
#ifndef NVML_SIM_H
#define NVML_SIM_H

#include "simgpu.h"

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
};

enum { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_CLOCK_VIDEO = 3 };

typedef struct {
	char busIdLegacy[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pciDeviceId;
	unsigned int pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total;
	unsigned long long reserved;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned int gpu;
	unsigned int memory;
} nvmlUtilization_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
	unsigned int version;
	unsigned int sensorType;
	int temperature;
} nvmlTemperature_t;

typedef union {
	double dVal;
	unsigned int uiVal;
	unsigned long ulVal;
	unsigned long long ullVal;
	long long sllVal;
} nvmlValue_t;

typedef struct {
	unsigned int fieldId;
	unsigned int scopeId;
	long long timestamp;
	long long latencyUsec;
	unsigned int valueType;
	nvmlReturn_t nvmlReturn;
	nvmlValue_t value;
} nvmlFieldValue_t;

#define SIM_QUIET (-1) /* a call that is not counted */

/* The state of this node while the library is initialised, else NULL. */
struct simgpu_state *sim_state(void);

/* Find the GPU, take the lock, bring its account up to date, count the call: on SUCCESS end with sim_end(). */
nvmlReturn_t sim_begin(nvmlDevice_t device, int call, struct simgpu_gpu **gpu);

/* As sim_begin(), for calls that change the GPU: root only. */
nvmlReturn_t sim_begin_set(nvmlDevice_t device, int call, struct simgpu_gpu **gpu);

/* Release the lock and pass the result on. */
nvmlReturn_t sim_end(nvmlReturn_t result);

/* Release the lock after a change and wake who waits for one. */
nvmlReturn_t sim_end_changed(nvmlReturn_t result);

nvmlReturn_t sim_copy_text(char *to, unsigned int length, const char *text);

static inline int sim_has_fault(const struct simgpu_gpu *gpu, enum simgpu_fault fault)
{
	return (gpu->faults >> fault & 1) != 0;
}

/* Readings with the lock held. */
nvmlReturn_t sim_energy(const struct simgpu_gpu *gpu, unsigned long long *millijoules);
nvmlReturn_t sim_power(const struct simgpu_gpu *gpu, unsigned int *milliwatts);

#endif
