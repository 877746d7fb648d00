-- SPDX-License-Identifier: GPL-2.0-or-later
-- Fall-back for sites that cannot build job_submit/energy: JobSubmitPlugins=lua.
--
-- Lua can read the job control environment but not write it: jobs carry no decision to their nodes, which ask the daemon
-- for it where node.fetch_decisions is set, and then take no other. It puts a partition before the job's own ones, sets a preferred node feature and
-- the admin comment, shows the message on a terminal, and otherwise leaves the job as it came. Needs lua-socket for the
-- Lua that Slurm was built with.

local SOCKET = "/run/slurm-energy/energyd.sock"
local DEADLINE_SECONDS = 0.05
local BREAKER_FAILURES = 3
local BREAKER_SECONDS = 5
local MAX_TEXT = 1024
local MAX_SCRIPT = 512
-- What Slurm does not tell a script; `slurm-energy install --job-submit lua` writes what slurm.conf says. As they
-- stand, jobs that ask for GPUs keep their partitions, the order of a list changes only where its last partition stays
-- the last one, a job that names no partition keeps the default one alone, and no feature is preferred.
local ENFORCES_ALL_LIMITS = true -- false unless slurm.conf has EnforcePartLimits=ALL
local HAS_JOB_DEFAULTS = true -- false where no partition has JobDefaults
local VALIDATES_PREFERENCES = true -- false where SchedulerParameters has ignore_prefer_validation
local HAS_PARTITION_ASSOCIATIONS = true -- false where sacctmgr knows no user with a Partition
local MAX_REPLY = 16384

local loaded, unix = pcall(require, "socket.unix")
local _, socket = pcall(require, "socket")
local failures, closed_until, said_at, unsaid = 0, 0, nil, 0

-- Text and numbers by the daemon's name of them; Slurm's Lua name differs where a pair is given.
local TEXTS = {
	"name", "account", "qos", "partition", "tres_per_job", "tres_per_node", "tres_per_socket",
	"tres_per_task", "features", "prefer", "reservation", "dependency", "licenses",
	{ "array", "array_inx" },
}
local NUMBERS = {
	"time_limit", "time_min", "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node",
	"cpus_per_task", "min_cpus", "max_cpus", "begin_time",
	{ "gid", "group_id" }, { "slurm_deadline", "deadline" },
}
-- What a user may say of the nodes, by Slurm's Lua name.
local NODE_TEXTS = {
	"prefer", "features", "req_nodes", "exc_nodes", "reservation", "tres_per_socket", "cpus_per_tres", "mem_per_tres",
}
local NODE_NUMBERS = {
	"pn_min_cpus", "pn_min_tmp_disk", "boards_per_node", "sockets_per_board", "sockets_per_node", "cores_per_socket",
	"threads_per_core", "ntasks_per_board", "ntasks_per_socket", "ntasks_per_core", "ntasks_per_tres", "req_switch",
	"contiguous", "immediate",
}
local NO_VAL, INFINITE = 4294967294, 4294967295
-- Where a job may ask for GPUs.
local GPU_TEXTS = { "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "gres" }
-- What ties a job to its partitions, or decides whether Slurm takes it at once.
local TYING_TEXTS = { "req_nodes", "exc_nodes", "reservation", "array_inx", "burst_buffer", "clusters" }
-- Settings in which all partitions of a list must agree, or that a job takes from the first of them.
local SAME_EVERYWHERE = { "allow_alloc_nodes", "qos", "max_mem_per_cpu", "max_mem_per_node" }
local SAME_DEFAULTS = { "def_mem_per_cpu", "def_mem_per_node", "billing_weights_str" }
local SAME_WHERE_ADDED = { "priority_tier", "priority_job_factor", "min_nodes", "max_nodes", "max_share", "flags" }
local MODES = { off = true, observe = true, balanced = true, saver = true }

local function field(job, name)
	local found, value = pcall(function() return job[name] end)
	if found then return value end
end

local function escape(text)
	-- Bytes over 127 are all sent as %XX: right for UTF-8 and for what is not UTF-8.
	return (text:gsub("[%%%c\127-\255]", function(byte) return ("%%%02X"):format(byte:byte()) end))
end

local function add(lines, key, value)
	if value ~= nil and value ~= "" then lines[#lines + 1] = key .. "=" .. escape(tostring(value)) end
end

local function is_set(value)
	-- NO_VAL and INFINITE of 16, 32 and 64 bits
	return type(value) == "number" and value > 0 and value ~= 65534 and value ~= 65535 and
		value < NO_VAL
end

local function wishes(job, lines)
	local entries = field(job, "spank_job_env")
	for _, entry in pairs(type(entries) == "table" and entries or {}) do
		local mode = tostring(entry):match("^ENERGY_MODE=(%l+)$")
		if mode and MODES[mode] then lines.energy_mode = mode end
		if entry == "ENERGY_TERMINAL=explain" then lines.energy_explain = "1" end
		local script = tostring(entry):match("^ENERGY_SCRIPT=([%l%d_.=;,+-]+)$")
		if script and #script <= MAX_SCRIPT then lines.script = script end
	end
	add(lines, "script", lines.script)
	add(lines, "energy_explain", lines.energy_explain)
	add(lines, "energy_mode", lines.energy_mode)
end

local function is_empty(job, name)
	local value = field(job, name)
	return value == nil or value == ""
end

local function is_tied(job)
	for _, name in ipairs(TYING_TEXTS) do
		if not is_empty(job, name) then return true end
	end
	local offset = field(job, "het_job_offset")
	return is_set(field(job, "time_min")) or is_set(field(job, "immediate")) or is_set(field(job, "contiguous")) or
		(offset ~= nil and offset ~= NO_VAL)
end

local function request(job, submit_uid)
	local lines = { "slurm-energy/1 decide", "client=job_submit_lua" }
	local uid = field(job, "user_id")
	add(lines, "uid", is_set(uid) and uid or submit_uid)
	add(lines, "submit_uid", submit_uid)
	for _, names in ipairs(TEXTS) do
		local key = type(names) == "table" and names[1] or names
		local value = field(job, type(names) == "table" and names[2] or names)
		if value ~= nil then
			value = tostring(value)
			if key == "name" then value = value:sub(1, 256) end
			if #value > MAX_TEXT then error(key .. " is too long") end
			add(lines, key, value)
		end
	end
	for _, names in ipairs(NUMBERS) do
		local value = field(job, type(names) == "table" and names[2] or names)
		if is_set(value) then
			add(lines, type(names) == "table" and names[1] or names, ("%d"):format(value))
		end
	end
	if not field(job, "script") then add(lines, "interactive", 1) end
	if is_tied(job) then add(lines, "tied", 1) end
	if field(job, "priority") == 0 then add(lines, "held", 1) end
	wishes(job, lines)
	return table.concat(lines, "\n") .. "\nend\n"
end

local function exchange(bytes)
	local deadline = socket.gettime() + DEADLINE_SECONDS
	local client = unix.stream and unix.stream() or unix()
	local function left()
		local seconds = deadline - socket.gettime()
		if seconds <= 0 then error("no complete answer before the deadline") end
		client:settimeout(seconds, "t")
	end
	local answered, reply = pcall(function()
		left()
		assert(client:connect(SOCKET))
		left()
		assert(client:send(bytes))
		local lines, size = {}, 0
		repeat
			left()
			local line = assert(client:receive("*l"))
			size = size + #line
			if size > MAX_REPLY then error("answer is too long") end
			lines[#lines + 1] = line
		until line == "end"
		return lines
	end)
	client:close()
	if not answered then error(reply, 0) end
	return reply
end

local function parse(lines)
	if lines[1] ~= "slurm-energy/1 ok" then error("refused or malformed: " .. lines[1]:sub(1, 64)) end
	local reply = {}
	for number = 2, #lines - 1 do
		local key, value = lines[number]:match("^(%l[%l%d_]*)=(%C*)$")
		if not key or reply[key] then error("malformed line " .. number) end
		reply[key] = value:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
	end
	return reply
end

-- Whether a preference can only steer the job. Slurm reads --prefer before --constraint at submission: it refuses a job
-- whose preference no node can meet, unless slurm.conf says otherwise, and one that must start at once while the
-- preferred nodes are busy. And the user must have said nothing of the nodes but what the daemon has weighed. What
-- cannot be read may be anything.
local function is_open_to_hints(job)
	if VALIDATES_PREFERENCES then return false end
	local read, open = pcall(function()
		for _, name in ipairs(NODE_TEXTS) do
			if job[name] ~= nil and job[name] ~= "" then return false end
		end
		for _, name in ipairs(NODE_NUMBERS) do
			if is_set(job[name]) then return false end
		end
		return job.het_job_offset == nil or job.het_job_offset == NO_VAL
	end)
	return read and open
end

local function is_on_terminal(job)
	local entries = field(job, "spank_job_env")
	for _, entry in pairs(type(entries) == "table" and entries or {}) do
		if entry == "ENERGY_TERMINAL=1" or entry == "ENERGY_TERMINAL=explain" then return true end
	end
	return false
end

local function names_of(...)
	local names, seen = {}, {}
	for _, list in ipairs({ ... }) do
		for name in list:gmatch("[^,]+") do
			if not seen[name] then names[#names + 1], seen[name] = name, true end
		end
	end
	return names, seen
end

local function cpus_of(job)
	local function count(name) local value = field(job, name) return is_set(value) and value or 1 end
	local tasks = math.max(count("num_tasks"), count("min_nodes") * count("ntasks_per_node"))
	return math.max(tasks * count("cpus_per_task"), count("min_cpus"), count("min_nodes") * count("pn_min_cpus"))
end

local function limit_holds(limit, value) return not is_set(limit) or value <= limit end

-- Whether a partition takes the job by what slurmctld says of it.
local function takes(part, job)
	local time, nodes = field(job, "time_limit"), field(job, "min_nodes")
	if time == INFINITE then
		time = math.huge
	elseif not is_set(time) then
		time = is_set(part.default_time) and part.default_time or 0
	end
	local asked = is_set(nodes) and nodes or 1
	local function listed(list, name)
		return list == nil or list == "" or list:upper() == "ALL" or
			(name and ("," .. list .. ","):find("," .. name .. ",", 1, true) ~= nil)
	end
	local counted = is_empty(job, "cpus_per_tres") and is_empty(job, "tres_per_task") and
		is_empty(job, "tres_per_socket") and not is_set(field(job, "threads_per_core"))
	return (counted or not is_set(part.max_cpus_per_node)) and limit_holds(part.max_cpus_per_node, cpus_of(job)) and
		(counted or not is_set(part.max_cpus_per_socket)) and limit_holds(part.max_cpus_per_socket, cpus_of(job)) and
		limit_holds(part.max_time, time) and limit_holds(part.max_nodes, asked) and
		(part.min_nodes or 0) <= asked and asked <= part.total_nodes and cpus_of(job) <= part.total_cpus and
		listed(part.allow_accounts, field(job, "account")) and listed(part.allow_qos, field(job, "qos")) and
		(part.deny_accounts or "") == "" and (part.deny_qos or "") == ""
end

-- Whether a job may take its CPUs or memory for each GPU from JobDefaults of its first partition.
local function may_take_job_defaults(job)
	for _, name in ipairs(HAS_JOB_DEFAULTS and GPU_TEXTS or {}) do
		if tostring(field(job, name) or ""):find("gpu", 1, true) then return true end
	end
	return false
end

-- Why the partitions of a job stay as they are; nil where the answer's go first.
local function against(job, wanted, own, moved, parts)
	local home, adds = parts[own[1]], is_empty(job, "partition")
	if is_tied(job) then return "the job is tied to its partitions" end
	if #own == 0 or not home then return "its own partitions are not known" end
	if ENFORCES_ALL_LIMITS and wanted[#wanted] ~= own[#own] then return "EnforcePartLimits" end
	if adds and HAS_PARTITION_ASSOCIATIONS then return "associations" end
	if may_take_job_defaults(job) then return "JobDefaults" end
	for at, name in ipairs(wanted) do
		local part = parts[name]
		-- Those that are missing here do not exist or are closed to the user, and Slurm stops reading at them.
		if not part then return name .. " is not open to the user" end
		if math.floor(part.flags / 16) % 2 == 1 then return name .. " needs a reservation" end
		for _, key in ipairs(SAME_EVERYWHERE) do
			if part[key] ~= home[key] then return name .. " differs in " .. key end
		end
		local first = parts[wanted[1]]
		if part.priority_tier > first.priority_tier or part.priority_job_factor > first.priority_job_factor then
			return name .. " has the higher priority"
		end
		if at <= moved or ENFORCES_ALL_LIMITS or part == home then
			if part.state_up ~= 3 then return name .. " is not up" end
			for _, key in ipairs(SAME_DEFAULTS) do
				if part[key] ~= home[key] then return name .. " differs in " .. key end
			end
			if not is_set(field(job, "time_limit")) and part.default_time ~= home.default_time then
				return name .. " differs in default_time"
			end
		end
		if (at <= moved or ENFORCES_ALL_LIMITS) and not takes(part, job) then return name .. " does not take the job" end
		for _, key in ipairs(adds and SAME_WHERE_ADDED or {}) do
			local one, other = part[key], home[key]
			if key == "flags" then one, other = one - one % 4, other - other % 4 end -- less DEFAULT and HIDDEN
			if one ~= other then return name .. " differs in " .. key end
		end
	end
end

local function default_of(parts)
	for name, part in pairs(parts) do
		if part.flag_default == 1 then return name end
	end
	return ""
end

local function apply_partition(job, partition, parts)
	if not partition then return true end
	local read, applied = pcall(function()
		if not partition:match("^[%w_.,-]+$") or #partition > MAX_TEXT then return false end
		local list = field(job, "partition")
		local adds = list == nil or list == ""
		local own, owned = names_of(adds and default_of(parts) or list)
		local moved = names_of(partition)
		for _, name in ipairs(adds and {} or moved) do
			if not owned[name] then return false end
		end
		local wanted = names_of(partition, table.concat(own, ","))
		if table.concat(wanted, ",") == table.concat(own, ",") then return true end
		if against(job, wanted, own, #moved, parts) then return false end
		job.partition = table.concat(wanted, ",")
		return true
	end)
	return read and applied
end

local function apply(job, reply, parts)
	local prefer, comment, message = reply.prefer, reply.admin_comment, reply.message
	local applied = apply_partition(job, reply.partition, parts)
	if not applied then message = reply.message_in_place end
	if applied and prefer and prefer:match("^[%w_.:-]+$") and #prefer <= 64 and is_open_to_hints(job) then
		job.prefer = prefer
	end
	if comment and comment:match("^[\32-\126]+$") and #comment <= 256 then
		local before = field(job, "admin_comment")
		comment = applied and comment or comment .. " partition-kept"
		job.admin_comment = (before and before ~= "") and (before .. "; " .. comment) or comment
	end
	-- Only to a terminal, which spank_energy.so tells: programs take a line on stderr for an error.
	if message and is_on_terminal(job) and not message:find("%c") and #message <= 512 then
		slurm.log_user("energy: %s", message)
	end
end

local function say(problem)
	unsaid = unsaid + 1
	if said_at and os.time() - said_at < 60 then return end
	slurm.log_error("energy: %d jobs left unchanged; last: %s", unsaid, tostring(problem))
	said_at, unsaid = os.time(), 0
end

function slurm_job_submit(job, parts, submit_uid)
	if os.time() < closed_until then return slurm.SUCCESS end
	local done, problem = pcall(function()
		if not loaded then error("lua-socket is not installed") end
		apply(job, parse(exchange(request(job, submit_uid))), parts)
	end)
	failures = done and 0 or failures + 1
	if failures >= BREAKER_FAILURES then closed_until = os.time() + BREAKER_SECONDS end
	if not done then pcall(say, problem) end
	return slurm.SUCCESS
end

function slurm_job_modify()
	return slurm.SUCCESS
end

return slurm.SUCCESS
