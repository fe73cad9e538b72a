-- Sliding windows: the exact log. Never more than `count` units in any window (t - window, t].
--
-- KEYS  1 hash: totals, pointers, clock   2 zset: admissions, "mark|cost" by time   3 zset: bookings, by due time
--       4 string: end of a pause
-- ARGV  1 take, confirm, correct or look   2 cost   3 patience in us, -1 for any   4 mark   5 units to correct by
--       then count and window in us of each quota
-- Reply take, confirm: {1, mark} admitted, {2, mark, us} booked, {0, us} refused; look: {free, us}; correct: nothing
--
-- Times are microseconds of the server's clock, held back so that they never decrease. `t<i>` holds the units that
-- count in window i, the admissions up to `p<i>` are not among them any more.

local function round(number) return string.format('%.0f', number) end

local quotas, longest = {}, 0
for at = 6, #ARGV, 2 do
  local quota = {count = tonumber(ARGV[at]), window = tonumber(ARGV[at + 1])}
  quotas[#quotas + 1] = quota
  longest = math.max(longest, quota.window)
end

local hash, log, bookings = KEYS[1], KEYS[2], KEYS[3]
local cost = tonumber(ARGV[2])
local stored = redis.call('HGETALL', hash)
local state = {}
for at = 1, #stored, 2 do state[stored[at]] = tonumber(stored[at + 1]) end

local time = redis.call('TIME')
local skew = state.skew or 0
local now = time[1] * 1000000 + time[2] + skew
if now < (state.last or 0) then
  skew = skew + state.last - now
  now = state.last
end
local pause = tonumber(redis.call('GET', KEYS[4]) or 0) + skew
local booked = state.booked or 0

local function cost_of(member) return tonumber(string.match(member, '|(%d+)$')) end

local function settle()
  local known = redis.call('EXISTS', log) == 1
  for index, quota in ipairs(quotas) do
    local oldest = now - quota.window
    quota.total = known and state['t' .. index] or 0
    local gone = known and redis.call('ZRANGEBYSCORE', log, '(' .. round(state['p' .. index] or 0), oldest) or {}
    for _, member in ipairs(gone) do quota.total = quota.total - cost_of(member) end
  end
  if booked == 0 then return end
  if redis.call('EXISTS', bookings) == 0 then booked = 0 end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', bookings, '-inf', now - longest)) do
    booked = booked - cost_of(member)
  end
end

-- What has left every window goes together with the totals that know of it: a refusal changes nothing.
local function save()
  local fields = {'last', now, 'skew', skew, 'booked', booked, 'serial', state.serial or 0}
  for index, quota in ipairs(quotas) do
    for _, value in ipairs({'t' .. index, quota.total, 'p' .. index, now - quota.window}) do
      fields[#fields + 1] = value
    end
  end
  redis.call('HSET', hash, unpack(fields))
  redis.call('ZREMRANGEBYSCORE', log, '-inf', now - longest)
  local latest = now
  if booked > 0 or (state.booked or 0) > 0 then
    redis.call('ZREMRANGEBYSCORE', bookings, '-inf', now - longest)
    latest = math.max(now, tonumber(redis.call('ZRANGE', bookings, -1, -1, 'WITHSCORES')[2] or 0))
  end
  local ttl = math.ceil((latest - now + longest) / 1000) + 1
  redis.call('PEXPIRE', hash, ttl)
  redis.call('PEXPIRE', log, ttl)
  if booked > 0 then redis.call('PEXPIRE', bookings, ttl) end
end

-- When `excess` units that count now have left the window: first admissions leave it, then bookings.
local function freed(quota, excess, sets)
  local at = now
  for _, set in ipairs(sets) do
    local offset = 0
    while excess > 0 do
      local from = '(' .. round(now - (set == log and quota.window or longest))
      local page = redis.call('ZRANGEBYSCORE', set, from, '+inf', 'WITHSCORES', 'LIMIT', offset, 100)
      if #page == 0 then break end
      for place = 1, #page, 2 do
        excess = excess - cost_of(page[place])
        at = tonumber(page[place + 1]) + quota.window
        if excess <= 0 then break end
      end
      offset = offset + 100
    end
  end
  return math.max(at, now)
end

local function due(sets, others)
  local at = math.max(now, pause)
  for _, quota in ipairs(quotas) do
    local excess = quota.total + others + cost - quota.count
    if excess > 0 then at = math.max(at, freed(quota, excess, sets)) end
  end
  return at
end

local function newcomer()
  local at = due({log, bookings}, booked)
  if at > now and booked > 0 then
    at = math.max(at, tonumber(redis.call('ZRANGE', bookings, -1, -1, 'WITHSCORES')[2] or 0))
  end
  return at
end

local function admit(mark)
  redis.call('ZADD', log, now, mark .. '|' .. cost)
  for _, quota in ipairs(quotas) do quota.total = quota.total + cost end
  save()
  return {1, mark}
end

local function take()
  local at = newcomer()
  local patience = tonumber(ARGV[3])
  if at > now and patience >= 0 and at - now > patience then return {0, at - now} end
  state.serial = (state.serial or 0) + 1
  local mark = round(now) .. '-' .. round(state.serial)
  if at <= now then return admit(mark) end
  redis.call('ZADD', bookings, at, mark .. '|' .. cost)
  booked = booked + cost
  save()
  return {2, mark, at - now}
end

-- The due time of a booking that has not been dropped.
local function booking(member)
  local planned = tonumber(redis.call('ZSCORE', bookings, member) or 0)
  return planned > now - longest and planned or nil
end

local function confirm()
  local mark = ARGV[4]
  local member = mark .. '|' .. cost
  local planned = booking(member)
  local at = math.max(planned or now, due({log}, 0))
  if at > now then return {2, mark, at - now} end
  if planned then
    redis.call('ZREM', bookings, member)
    booked = booked - cost
  end
  return admit(mark)
end

local function replace(set, member, score, units)
  redis.call('ZREM', set, member)
  local left = cost_of(member) + units
  if left > 0 then redis.call('ZADD', set, score, string.match(member, '^[^|]*') .. '|' .. round(left)) end
end

-- Takes units back from an admission, or adds them; tells how many it was.
local function correct_one(member, units)
  local at = tonumber(redis.call('ZSCORE', log, member) or 0)
  if at == 0 then return 0 end
  units = math.max(units, -cost_of(member))
  for _, quota in ipairs(quotas) do
    if at > now - quota.window then quota.total = quota.total + units end
  end
  replace(log, member, at, units)
  return units
end

local function correct()
  local member, units = ARGV[4] .. '|' .. cost, tonumber(ARGV[5])
  local planned = booking(member)
  if planned then
    units = math.max(units, -cost)
    booked = booked + units
    replace(bookings, member, planned, units)
  elseif ARGV[4] ~= '' then
    correct_one(member, units)
  else
    while units ~= 0 do
      local newest = redis.call('ZREVRANGE', log, 0, 0)[1]
      if not newest then break end
      units = units - correct_one(newest, units)
    end
  end
  save()
end

settle()
if ARGV[1] == 'take' then return take() end
if ARGV[1] == 'confirm' then return confirm() end
if ARGV[1] == 'correct' then return correct() end
local free = now < pause and 0 or math.huge
for _, quota in ipairs(quotas) do free = math.min(free, math.max(0, quota.count - quota.total - booked)) end
return {free, newcomer() - now}
