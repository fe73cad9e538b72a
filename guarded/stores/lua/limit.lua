-- The permits of a limit: a lease for each holder, and a short queue of those that wait, one for each process.
--
-- KEYS  1 zset: holders by the end of their lease   2 hash: permits of a holder above one
--       3 zset: those that wait, by arrival   4 zset: the same, by when they are given up
--       5 hash: which memory this is, and until when it is quiet
-- ARGV  1 acquire, renew, release or look   2 owner
--       acquire, renew: 3 lease in us   4 permits   5 memory the process knew within a lease, empty for none
--       acquire: 6 limit   7 us for which its place in the queue is kept, 0 for none
-- Reply acquire: {1, held, memory} granted, {0, held, memory, us until a permit may come free, -1 for unknown};
--       renew: {1, memory}, or {0, memory} when the lease is over; look: {held, waiting}; release: 1, or 0 when it is over
--
-- Times are microseconds of the server's clock. Nobody overtakes: a permit is free for one whose turn it is. A server
-- that has lost its memory while leases ran (flushed, restarted) grants nothing for one lease, once a process that knew
-- the former memory has come by: in that time every holder renews, and is known again.

local holders, extra, queue, patience, marker = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner = ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local gone = redis.call('ZRANGEBYSCORE', holders, '-inf', now)
if #gone > 0 then
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', now)
  for _, member in ipairs(gone) do redis.call('HDEL', extra, member) end
end

local function hold(lease)
  redis.call('ZADD', holders, now + lease, owner)
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  local ttl = math.ceil((tonumber(last) - now) / 1000) + 1
  redis.call('PEXPIRE', holders, ttl)
  redis.call('PEXPIRE', extra, ttl)
end

local function leave()
  redis.call('ZREM', queue, owner)
  redis.call('ZREM', patience, owner)
end

local function held()
  local permits = redis.call('ZCARD', holders)
  for _, more in ipairs(redis.call('HVALS', extra)) do permits = permits + tonumber(more) end
  return permits
end

local function stand(keep)
  redis.call('ZADD', queue, 'NX', now, owner)
  redis.call('ZADD', patience, now + keep, owner)
  local ttl = math.ceil(keep / 1000) + 1
  redis.call('PEXPIRE', queue, ttl)
  redis.call('PEXPIRE', patience, ttl)
end

local function weigh(permits)
  if permits > 1 then redis.call('HSET', extra, owner, permits - 1) end
end

-- Which memory this is, whether the process knew another, and until when it grants nothing.
local function remember(lease, known)
  local memory = redis.call('HGET', marker, 'memory')
  if not memory then
    memory = string.format('%.0f', now)
    redis.call('HSET', marker, 'memory', memory)
  end
  local differs = known ~= '' and known ~= memory
  if differs then redis.call('HSETNX', marker, 'quiet', now + lease) end
  redis.call('PEXPIRE', marker, math.max(2 * math.ceil(lease / 1000) + 1, redis.call('PTTL', marker)))
  return memory, differs, tonumber(redis.call('HGET', marker, 'quiet') or 0)
end

if ARGV[1] == 'renew' then
  local lease = tonumber(ARGV[3])
  local memory, differs = remember(lease, ARGV[5])
  if not redis.call('ZSCORE', holders, owner) then
    if not differs then return {0, memory} end
    weigh(tonumber(ARGV[4]))
  end
  hold(lease)
  return {1, memory}
end
if ARGV[1] == 'release' then
  leave()
  redis.call('HDEL', extra, owner)
  return redis.call('ZREM', holders, owner)
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', patience, '-inf', now)) do
  redis.call('ZREM', queue, member)
  redis.call('ZREM', patience, member)
end
local permits = held()
if ARGV[1] == 'look' then return {permits, redis.call('ZCARD', queue)} end

local lease, weight, limit, keep = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
local memory, _, quiet = remember(lease, ARGV[5])
if redis.call('ZSCORE', holders, owner) then
  hold(lease)
  return {1, permits, memory}
end
local ahead = redis.call('ZRANK', queue, owner) or redis.call('ZCARD', queue)
local alone = permits == 0 and ahead == 0 and limit > 0 -- a weight that a shrunk limit cannot hold runs by itself
if now >= quiet and (permits + ahead + weight <= limit or alone) then
  leave()
  weigh(weight)
  hold(lease)
  return {1, permits + weight, memory}
end
if keep > 0 then stand(keep) end
if now < quiet then return {0, permits, memory, quiet - now} end
local next_end = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
return {0, permits, memory, next_end and tonumber(next_end) - now or -1}
