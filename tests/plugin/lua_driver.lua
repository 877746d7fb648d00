-- SPDX-License-Identifier: GPL-2.0-or-later
-- lua_driver.lua PLUGIN SOCKET JOB [TIMES [FALSE [SECONDS]]]: one submission with a fake `slurm`; prints what came of it.
local plugin, socket_path, kind, times = arg[1], arg[2], arg[3], tonumber(arg[4] or "1")
local jobs = {
	empty = function() return {} end,
	raising = function() return setmetatable({}, { __index = function() error("no such field") end }) end,
	plain = function()
		return {
			name = "a\"b\n%41\255", partition = "a100,a40", tres_per_node = "gres:gpu:2", user_id = 5,
			time_limit = 90, time_min = 4294967294, ntasks_per_node = 65534, script = "#!/bin/sh",
			admin_comment = "seen", spank_job_env = { "ENERGY_MODE=saver", "ENERGY_MODE=$(id)", "ENERGY_TERMINAL=1" },
		}
	end,
	explained = function()
		return { spank_job_env = { "ENERGY_TERMINAL=explain", "ENERGY_SCRIPT=v=1;model=bert", "ENERGY_SCRIPT=$(id)" } }
	end,
	piped = function() return { partition = "a100,a40", spank_job_env = { "ENERGY_MODE=saver" } } end,
	hinted = function()
		return {
			script = "#!/bin/sh", prefer = "", pn_min_cpus = 65534, ntasks_per_core = 65535, contiguous = 0,
			pn_min_tmp_disk = 4294967294, het_job_offset = 4294967294,
		}
	end,
	constrained = function() return { features = "ib" } end,
	preferring = function() return { prefer = "mine" } end,
	immediate = function() return { immediate = 1 } end,
	excluding = function() return { exc_nodes = "n1" } end,
	named = function() return { req_nodes = "n1" } end,
	threaded = function() return { threads_per_core = 1 } end,
	component = function() return { het_job_offset = 0 } end,
	reserved = function() return { reservation = "maint" } end,
	unlimited = function() return { partition = "a100,two_hours", time_limit = 4294967295 } end,
	long = function() return { partition = ("p"):rep(5000) } end,
}
local function partition(more)
	local part = {
		state_up = 3, flags = 0, flag_default = 0, max_time = 4294967295, max_nodes = 4294967295, min_nodes = 0,
		total_nodes = 4, total_cpus = 128, max_cpus_per_node = 4294967295, priority_tier = 1, priority_job_factor = 1,
		max_share = 1, default_time = 60,
	}
	for key, value in pairs(more or {}) do part[key] = value end
	return part
end
local parts = {
	a100 = partition({ flag_default = 1, flags = 1 }), a40 = partition(), v100 = partition(),
	drained = partition({ state_up = 2 }), short = partition({ max_time = 5 }), small = partition({ max_cpus_per_node = 1 }),
	high = partition({ priority_tier = 2 }), other_default = partition({ default_time = 1 }),
	two_hours = partition({ max_time = 120 }),
	limited = partition({ qos = "part" }), reserved = partition({ flags = 16 }), whole = partition({ max_share = 0 }),
}
slurm = {
	SUCCESS = 0,
	log_error = function(form, ...) print("error", form:format(...)) end,
	log_user = function(form, ...) print("user", form:format(...)) end,
}
local file = assert(io.open(plugin))
local text = file:read("*a"):gsub('local SOCKET = "[^"]*"', ("local SOCKET = %q"):format(socket_path))
file:close()
if arg[6] then
	local changed, count = text:gsub("local DEADLINE_SECONDS = [%d.]+", "local DEADLINE_SECONDS = " .. arg[6])
	assert(count == 1)
	text = changed
end
for name in (arg[5] or ""):gmatch("[%w_]+") do
	local changed, count = text:gsub("local " .. name .. " = true", "local " .. name .. " = false")
	assert(count == 1, name)
	text = changed
end
assert(assert(loadstring(text))() == 0)
for _ = 1, times do
	local job = jobs[kind] and jobs[kind]() or {
		partition = kind, script = "#!/bin/sh", time_limit = 90, cpus_per_task = 2,
		spank_job_env = { "ENERGY_TERMINAL=1" },
	}
	print("rc", slurm_job_submit(job, parts, 1000))
	print("partition", rawget(job, "partition"))
	print("admin_comment", rawget(job, "admin_comment"))
	if (rawget(job, "prefer") or "") ~= "" then print("prefer", job.prefer) end
end
print("modify", slurm_job_modify(nil, nil, nil, 0))
