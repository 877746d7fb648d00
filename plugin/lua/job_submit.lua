-- SPDX-License-Identifier: GPL-2.0-or-later
-- Fall-back for sites that cannot build job_submit/energy: JobSubmitPlugins=lua.
--
-- Lua can read the job control environment but not write it, so no clock reaches the nodes and a forged
-- decision entry cannot be removed. It sets the partition, a preferred node feature and the admin comment,
-- shows the message on a terminal, and otherwise leaves the job as it came. Needs lua-socket for the Lua that Slurm was built with.

local SOCKET = "/run/slurm-energy/energyd.sock"
local DEADLINE_SECONDS = 0.05
local BREAKER_FAILURES = 3
local BREAKER_SECONDS = 5
local MAX_TEXT = 1024
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
	"contiguous",
}
local NO_VAL = 4294967294
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
	end
	add(lines, "energy_explain", lines.energy_explain)
	add(lines, "energy_mode", lines.energy_mode)
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

local function is_allowed(answer, list)
	if list == nil or list == "" then return true end
	for name in answer:gmatch("[^,]+") do
		if not ("," .. list .. ","):find("," .. name .. ",", 1, true) then return false end
	end
	return true
end

local function is_empty(job, name)
	local value = field(job, name)
	return value == nil or value == ""
end

-- Whether the user said nothing of the nodes but what the daemon has weighed: Slurm reads --prefer before
-- --constraint, and refuses a job that the preferred nodes could never run. What cannot be read may be anything.
local function is_open_to_hints(job)
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

local function apply_partition(job, partition)
	if not partition then return true end
	local allowed = partition:match("^[%w_.,-]+$") and #partition <= MAX_TEXT and is_empty(job, "req_nodes") and
		is_allowed(partition, field(job, "partition"))
	if allowed then job.partition = partition end
	return allowed
end

local function apply(job, reply)
	local prefer, comment = reply.prefer, reply.admin_comment
	if apply_partition(job, reply.partition) and prefer and prefer:match("^[%w_.:-]+$") and #prefer <= 64 and
		is_open_to_hints(job) then
		job.prefer = prefer
	end
	if comment and comment:match("^[\32-\126]+$") and #comment <= 256 then
		local before = field(job, "admin_comment")
		job.admin_comment = (before and before ~= "") and (before .. "; " .. comment) or comment
	end
	-- Only to a terminal, which spank_energy.so tells: programs take a line on stderr for an error.
	if reply.message and is_on_terminal(job) and not reply.message:find("%c") and #reply.message <= 512 then
		slurm.log_user("energy: %s", reply.message)
	end
end

local function say(problem)
	unsaid = unsaid + 1
	if said_at and os.time() - said_at < 60 then return end
	slurm.log_error("energy: %d jobs left unchanged; last: %s", unsaid, tostring(problem))
	said_at, unsaid = os.time(), 0
end

function slurm_job_submit(job, _, submit_uid)
	if os.time() < closed_until then return slurm.SUCCESS end
	local done, problem = pcall(function()
		if not loaded then error("lua-socket is not installed") end
		apply(job, parse(exchange(request(job, submit_uid))))
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
