-- The record of one idempotency key: running (an owner with a lease) or finished (a payload that lives its time).
--
-- KEYS  1 hash: owner, began, lease and its end, fingerprint; or payload, done, fingerprint
--       2 hash: which memory this is, and until when it is quiet
-- ARGV  1 begin, complete, renew or release   2 owner   3 fingerprint, empty for none   4 lease in us   5 ttl in us
--       6 memory the process knew within a lease, empty for none
--       begin: 7 1 to take over what was abandoned   complete: 7 payload
-- Reply begin: {memory, 'started', us since an abandoned run began or -1}, {memory, 'running', us left},
--       {memory, 'finished', payload, us of age}, {memory, 'mismatch', 1 while running}, {memory, 'abandoned', us since it
--       began}; complete, renew, release: {memory, 1}, or {memory, 0} when the record is not the owner's (any more)
--
-- Times are microseconds of the server's clock. Only the owner changes a running record, nobody a finished one. A server
-- that has lost its memory while leases ran (flushed, restarted) starts nothing for one lease, once a process that knew
-- the former memory has come by: in that time every owner renews, and is known again.

local key, marker, owner, fingerprint = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local lease, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', key, 'owner', 'began', 'until', 'payload', 'done', 'fingerprint')
local running, began, stop = record[1], tonumber(record[2] or 0), tonumber(record[3] or 0)
local finished = record[4]

local marks = redis.call('HMGET', marker, 'memory', 'quiet')
local memory, quiet = marks[1], tonumber(marks[2] or 0)
if not memory then
  memory = string.format('%.0f', now)
  redis.call('HSET', marker, 'memory', memory)
end
local differs = ARGV[6] ~= '' and ARGV[6] ~= memory
if differs and quiet == 0 then
  quiet = now + lease
  redis.call('HSET', marker, 'quiet', quiet)
end
redis.call('PEXPIRE', marker, math.max(2 * math.ceil(lease / 1000) + 1, redis.call('PTTL', marker)))

local function keep(us) redis.call('PEXPIRE', key, math.max(1, math.ceil(us / 1000))) end

local function run(since)
  redis.call('DEL', key)
  redis.call('HSET', key, 'owner', owner, 'began', since, 'until', now + lease, 'fingerprint', fingerprint)
  keep(lease + ttl) -- so long it is remembered that its owner has vanished
end

if ARGV[1] == 'begin' then
  if (running or finished) and fingerprint ~= '' and record[6] ~= '' and record[6] ~= fingerprint then
    return {memory, 'mismatch', finished and 0 or 1}
  end
  if finished then return {memory, 'finished', finished, now - tonumber(record[5])} end
  if running == owner then
    run(began)
    return {memory, 'started', -1}
  end
  if running and now < stop then return {memory, 'running', stop - now} end
  if running and ARGV[7] ~= '1' then return {memory, 'abandoned', now - began} end
  if not running and now < quiet then return {memory, 'running', quiet - now} end
  run(now)
  return {memory, 'started', running and now - began or -1}
end

if ARGV[1] == 'complete' then
  if finished or (running and running ~= owner) then return {memory, 0} end
  redis.call('DEL', key)
  redis.call('HSET', key, 'payload', ARGV[7], 'done', now, 'fingerprint', fingerprint)
  keep(ttl)
  return {memory, 1}
end

if ARGV[1] == 'renew' and differs and not (running or finished) then
  run(now)
  return {memory, 1}
end
if finished or running ~= owner then return {memory, 0} end
if ARGV[1] == 'renew' then
  redis.call('HSET', key, 'until', now + lease)
  keep(lease + ttl)
else
  redis.call('DEL', key)
end
return {memory, 1}
