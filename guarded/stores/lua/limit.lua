-- The permits of a limit: a lease for each holder, and a short queue of those that wait, one for each process.
--
-- KEYS  1 zset: holders by the end of their lease   2 hash: permits of a holder above one
--       3 zset: those that wait, by arrival   4 zset: the same, by when they are given up
-- ARGV  1 acquire, renew, release or look   2 owner
--       acquire: 3 lease in us   4 permits   5 limit   6 us for which its place in the queue is kept, 0 for none
--       renew: 3 lease in us
-- Reply acquire: {1, held} granted, {0, held, us until the next lease ends, -1 for none}; look: {held, waiting};
--       renew, release: 1, or 0 when the lease is over
--
-- Times are microseconds of the server's clock. Nobody overtakes: a permit is free for one whose turn it is.

local holders, extra, queue, patience = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
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

if ARGV[1] == 'renew' then
  if not redis.call('ZSCORE', holders, owner) then return 0 end
  hold(tonumber(ARGV[3]))
  return 1
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

local lease, weight, limit, keep = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if redis.call('ZSCORE', holders, owner) then
  hold(lease)
  return {1, permits}
end
local ahead = redis.call('ZRANK', queue, owner) or redis.call('ZCARD', queue)
local alone = permits == 0 and ahead == 0 and limit > 0 -- a weight that a shrunk limit cannot hold runs by itself
if permits + ahead + weight <= limit or alone then
  leave()
  if weight > 1 then redis.call('HSET', extra, owner, weight - 1) end
  hold(lease)
  return {1, permits + weight}
end
if keep > 0 then stand(keep) end
local next_end = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
return {0, permits, next_end and tonumber(next_end) - now or -1}
