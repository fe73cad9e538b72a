-- The record of one idempotency key: running (an owner with a lease) or finished (a payload that lives its time).
--
-- KEYS  1 hash: owner, began, lease and its end, fingerprint; or payload, done, fingerprint
-- ARGV  1 begin, complete, renew or release   2 owner   3 fingerprint, empty for none   4 lease in us   5 ttl in us
--       begin: 6 1 to take over what was abandoned   complete: 6 payload
-- Reply begin: {'started', us since an abandoned run began or -1}, {'running', us left}, {'finished', payload, us of age},
--       {'mismatch', 1 while running}, {'abandoned', us since it began}; complete, renew, release: 1, or 0 when the
--       record is not the owner's (any more)
--
-- Times are microseconds of the server's clock. Only the owner changes a running record, nobody a finished one.

local key, owner, fingerprint = KEYS[1], ARGV[2], ARGV[3]
local lease, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', key, 'owner', 'began', 'until', 'payload', 'done', 'fingerprint')
local running, began, stop = record[1], tonumber(record[2] or 0), tonumber(record[3] or 0)
local finished = record[4]

local function keep(us) redis.call('PEXPIRE', key, math.max(1, math.ceil(us / 1000))) end

local function run(since)
  redis.call('DEL', key)
  redis.call('HSET', key, 'owner', owner, 'began', since, 'until', now + lease, 'fingerprint', fingerprint)
  keep(lease + ttl) -- so long it is remembered that its owner has vanished
end

if ARGV[1] == 'begin' then
  if (running or finished) and fingerprint ~= '' and record[6] ~= '' and record[6] ~= fingerprint then
    return {'mismatch', finished and 0 or 1}
  end
  if finished then return {'finished', finished, now - tonumber(record[5])} end
  if running == owner then
    run(began)
    return {'started', -1}
  end
  if running and now < stop then return {'running', stop - now} end
  if running and ARGV[6] ~= '1' then return {'abandoned', now - began} end
  run(now)
  return {'started', running and now - began or -1}
end

if ARGV[1] == 'complete' then
  if finished or (running and running ~= owner) then return 0 end
  redis.call('DEL', key)
  redis.call('HSET', key, 'payload', ARGV[6], 'done', now, 'fingerprint', fingerprint)
  keep(ttl)
  return 1
end

if finished or running ~= owner then return 0 end
if ARGV[1] == 'renew' then
  redis.call('HSET', key, 'until', now + lease)
  keep(lease + ttl)
else
  redis.call('DEL', key)
end
return 1
