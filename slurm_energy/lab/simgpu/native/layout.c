/* Sizes and offsets of what processes share, so that the Python mirror can be compared with them. */
#include "simgpu.h"

#include <stdarg.h>
#include <stdio.h>

static char table[16384];
static size_t used;

static void put(const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(table + used, sizeof(table) - used, format, arguments);
	va_end(arguments);
	if (length > 0 && (size_t)length < sizeof(table) - used)
		used += (size_t)length;
}

#define BEGIN(type) put("\"%s\":{\"\":[0,%zu]", #type, sizeof(struct type))
#define FIELD(type, field) \
	put(",\"%s\":[%zu,%zu]", #field, offsetof(struct type, field), sizeof(((struct type *)0)->field))
#define END() put("},")

static void put_loads(void)
{
	BEGIN(simgpu_curve);
	FIELD(simgpu_curve, cubic_watts);
	FIELD(simgpu_curve, linear_watts);
	FIELD(simgpu_curve, constant_watts);
	FIELD(simgpu_curve, memory_share);
	FIELD(simgpu_curve, compute_share);
	FIELD(simgpu_curve, fixed_share);
	FIELD(simgpu_curve, reference_clock_mhz);
	END();
	BEGIN(simgpu_rhythm);
	FIELD(simgpu_rhythm, kind);
	FIELD(simgpu_rhythm, evaluation_every);
	FIELD(simgpu_rhythm, seed);
	FIELD(simgpu_rhythm, period_seconds);
	FIELD(simgpu_rhythm, high_share);
	FIELD(simgpu_rhythm, low_level);
	FIELD(simgpu_rhythm, jitter);
	FIELD(simgpu_rhythm, stall_chance);
	FIELD(simgpu_rhythm, stall_seconds);
	FIELD(simgpu_rhythm, evaluation_seconds);
	END();
	BEGIN(simgpu_profile);
	FIELD(simgpu_profile, name);
	FIELD(simgpu_profile, units_per_second);
	FIELD(simgpu_profile, curve);
	END();
	BEGIN(simgpu_load);
	FIELD(simgpu_load, in_use);
	FIELD(simgpu_load, paused);
	FIELD(simgpu_load, pid);
	FIELD(simgpu_load, default_clock_mhz);
	FIELD(simgpu_load, pid_start);
	FIELD(simgpu_load, pid_namespace);
	FIELD(simgpu_load, utilisation);
	FIELD(simgpu_load, target_seconds);
	FIELD(simgpu_load, memory_bytes);
	FIELD(simgpu_load, curve);
	FIELD(simgpu_load, rhythm);
	END();
	BEGIN(simgpu_account);
	FIELD(simgpu_account, device_seconds);
	FIELD(simgpu_account, energy_joules);
	FIELD(simgpu_account, published_joules);
	FIELD(simgpu_account, temperature_c);
	FIELD(simgpu_account, average_watts);
	FIELD(simgpu_account, done_seconds);
	END();
	BEGIN(simgpu_operating_point);
	FIELD(simgpu_operating_point, sm_clock_mhz);
	FIELD(simgpu_operating_point, contexts);
	FIELD(simgpu_operating_point, watts);
	FIELD(simgpu_operating_point, utilisation);
	FIELD(simgpu_operating_point, slice);
	FIELD(simgpu_operating_point, work_rate);
	END();
}

static void put_gpu(void)
{
	BEGIN(simgpu_gpu);
	FIELD(simgpu_gpu, name);
	FIELD(simgpu_gpu, uuid);
	FIELD(simgpu_gpu, serial);
	FIELD(simgpu_gpu, minor_number);
	FIELD(simgpu_gpu, slurm_position);
	FIELD(simgpu_gpu, pci_domain);
	FIELD(simgpu_gpu, pci_bus);
	FIELD(simgpu_gpu, pci_device);
	FIELD(simgpu_gpu, pci_device_id);
	FIELD(simgpu_gpu, architecture);
	FIELD(simgpu_gpu, compute_major);
	FIELD(simgpu_gpu, compute_minor);
	FIELD(simgpu_gpu, mig_capable);
	FIELD(simgpu_gpu, memory_lock_capable);
	FIELD(simgpu_gpu, memory_bytes);
	FIELD(simgpu_gpu, clock_count);
	FIELD(simgpu_gpu, memory_clock_count);
	FIELD(simgpu_gpu, clocks_mhz);
	FIELD(simgpu_gpu, memory_clocks_mhz);
	FIELD(simgpu_gpu, idle_clock_mhz);
	FIELD(simgpu_gpu, locked_low_mhz);
	FIELD(simgpu_gpu, locked_high_mhz);
	FIELD(simgpu_gpu, application_clock_mhz);
	FIELD(simgpu_gpu, power_limit_milliwatts);
	FIELD(simgpu_gpu, default_limit_milliwatts);
	FIELD(simgpu_gpu, min_limit_milliwatts);
	FIELD(simgpu_gpu, max_limit_milliwatts);
	FIELD(simgpu_gpu, site_locked_low_mhz);
	FIELD(simgpu_gpu, site_locked_high_mhz);
	FIELD(simgpu_gpu, site_limit_milliwatts);
	FIELD(simgpu_gpu, persistence);
	FIELD(simgpu_gpu, idle_watts);
	FIELD(simgpu_gpu, idle_context_watts);
	FIELD(simgpu_gpu, capping_floor_watts);
	FIELD(simgpu_gpu, holding_share);
	FIELD(simgpu_gpu, ambient_c);
	FIELD(simgpu_gpu, kelvin_per_watt);
	FIELD(simgpu_gpu, thermal_seconds);
	FIELD(simgpu_gpu, faults);
	FIELD(simgpu_gpu, stuck_joules);
	FIELD(simgpu_gpu, counter_offset_joules);
	FIELD(simgpu_gpu, block_seconds);
	FIELD(simgpu_gpu, calls);
	FIELD(simgpu_gpu, account_current);
	FIELD(simgpu_gpu, profile_count);
	FIELD(simgpu_gpu, account);
	FIELD(simgpu_gpu, loads);
	FIELD(simgpu_gpu, profiles);
	END();
}

static void put_state(void)
{
	BEGIN(simgpu_state);
	FIELD(simgpu_state, magic);
	FIELD(simgpu_state, version);
	FIELD(simgpu_state, size_bytes);
	FIELD(simgpu_state, gpu_count);
	FIELD(simgpu_state, generation);
	FIELD(simgpu_state, time_scale);
	FIELD(simgpu_state, manual_seconds);
	FIELD(simgpu_state, start_monotonic_seconds);
	FIELD(simgpu_state, counter_interval_seconds);
	FIELD(simgpu_state, power_averaging_seconds);
	FIELD(simgpu_state, node_name);
	FIELD(simgpu_state, driver_version);
	FIELD(simgpu_state, lock);
	FIELD(simgpu_state, gpus);
	END();
}

#define FAULT(name) put("\"%s\":%d,", #name, SIMGPU_FAULT_##name)
#define CALL(name) put("\"%s\":%d,", #name, SIMGPU_CALL_##name)

static void put_numbers(void)
{
	put("\"faults\":{");
	FAULT(ENERGY_UNSUPPORTED);
	FAULT(ENERGY_STUCK);
	FAULT(ENERGY_RESET);
	FAULT(ENERGY_ERROR);
	FAULT(ENERGY_BLOCKS);
	FAULT(POWER_UNSUPPORTED);
	FAULT(POWER_BLOCKS);
	FAULT(NO_PERMISSION);
	FAULT(CLOCK_IGNORED);
	FAULT(CLOCK_ERROR);
	FAULT(CLOCK_UNSUPPORTED);
	FAULT(CLOCK_BLOCKS);
	FAULT(RESET_FAILS_ONCE);
	FAULT(RESET_FAILS);
	FAULT(LIMIT_ERROR);
	FAULT(LOST);
	FAULT(MIG);
	FAULT(SYMBOL_MISSING);
	put("\"COUNT\":%d},\"calls\":{", SIMGPU_FAULT_COUNT);
	CALL(HANDLE);
	CALL(ENERGY);
	CALL(POWER);
	CALL(CLOCK_READ);
	CALL(CLOCK_LOCK);
	CALL(CLOCK_RESET);
	CALL(LIMIT_SET);
	CALL(APPLICATION_SET);
	CALL(APPLICATION_RESET);
	CALL(MEMORY_LOCK);
	CALL(MEMORY_RESET);
	put("\"COUNT\":%d}", SIMGPU_CALL_COUNT);
}

const char *simgpu_layout_json(void)
{
	used = 0;
	put("{\"version\":%d,", SIMGPU_VERSION);
	put_loads();
	put_gpu();
	put_state();
	put_numbers();
	put("}");
	return table;
}
