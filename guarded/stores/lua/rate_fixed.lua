-- Fixed windows, aligned to whole multiples since 1970-01-01 00:00 UTC by the server's clock.
--
-- KEYS  1 hash: windows, clock   2 string: end of a pause
-- ARGV  1 take, confirm, correct or look   2 cost   3 patience in us, -1 for any   4 mark   5 units to correct by
--       then count and window in us of each quota
-- Reply take, confirm: {1, mark} admitted, {2, mark, us} booked, {0, us} refused; look: {free, us}; correct: nothing
--
-- Times are microseconds of the server's clock, held back so that they never decrease. `e<i> u<i>` is the end of the
-- present window and the units used in it, `be<i> bu<i>` the last window with bookings and all that is meant for it.

local function round(number) return string.format('%.0f', number) end

local stored = redis.call('HGETALL', KEYS[1])
local state = {}
for at = 1, #stored, 2 do state[stored[at]] = tonumber(stored[at + 1]) end

local time = redis.call('TIME')
local skew = state.skew or 0
local now = time[1] * 1000000 + time[2] + skew
if now < (state.last or 0) then
  skew = skew + state.last - now
  now = state.last
end
local pause = tonumber(redis.call('GET', KEYS[2]) or 0) + skew
local cost = tonumber(ARGV[2])

local function end_at(quota, at) return (math.floor(at / quota.window) + 1) * quota.window end

local quotas = {}
for at = 6, #ARGV, 2 do
  local index = #quotas + 1
  local quota = {
    count = tonumber(ARGV[at]), window = tonumber(ARGV[at + 1]),
    stop = state['e' .. index] or 0, used = state['u' .. index] or 0,
    last = state['be' .. index] or 0, planned = state['bu' .. index] or 0,
  }
  if now >= quota.stop then quota.stop, quota.used = end_at(quota, now), 0 end
  if quota.last < quota.stop then quota.last, quota.planned = quota.stop, 0 end
  quotas[index] = quota
end

local function save()
  local fields, furthest = {'last', now, 'skew', skew}, now
  for index, quota in ipairs(quotas) do
    local values = {e = quota.stop, u = quota.used, be = quota.last, bu = quota.planned}
    for name, value in pairs(values) do
      fields[#fields + 1] = name .. index
      fields[#fields + 1] = value
    end
    furthest = math.max(furthest, quota.last)
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], math.ceil((furthest - now) / 1000) + 1)
end

local function due()
  local at = math.max(now, pause)
  for _, quota in ipairs(quotas) do
    local fits = quota.planned + cost <= quota.count
    if quota.last > quota.stop or not fits then
      at = math.max(at, fits and quota.last - quota.window or quota.last)
    end
  end
  return at
end

local function plan(at)
  for _, quota in ipairs(quotas) do
    local stop = end_at(quota, at)
    if stop > quota.last then quota.last, quota.planned = stop, 0 end
    if stop == quota.last then quota.planned = quota.planned + cost end
  end
end

local function admission()
  local stops = {}
  for index, quota in ipairs(quotas) do
    quota.used = quota.used + cost
    stops[index] = round(quota.stop)
  end
  save()
  return {1, 'a' .. table.concat(stops, ' ')}
end

local function take()
  local at = due()
  local patience = tonumber(ARGV[3])
  if at > now and patience >= 0 and at - now > patience then return {0, at - now} end
  plan(at)
  if at <= now then return admission() end
  save()
  return {2, 'b' .. round(at), at - now}
end

local function confirm()
  local planned = tonumber(string.sub(ARGV[4], 2))
  local at = math.max(planned, pause)
  for _, quota in ipairs(quotas) do
    if quota.used + cost > quota.count then at = math.max(at, quota.stop) end
  end
  if at > now then return {2, ARGV[4], at - now} end
  for _, quota in ipairs(quotas) do
    if end_at(quota, planned) ~= quota.stop and quota.last == quota.stop then
      quota.planned = quota.planned + cost
    end
  end
  return admission()
end

local function correct()
  local booking, units, index = string.sub(ARGV[4], 1, 1) == 'b', tonumber(ARGV[5]), 0
  local stops = {}
  for stop in string.gmatch(ARGV[4], '%d+') do stops[#stops + 1] = tonumber(stop) end
  for _, quota in ipairs(quotas) do
    index = index + 1
    local stop = booking and end_at(quota, stops[1]) or stops[index] or quota.stop
    if stop == quota.stop and not booking then quota.used = math.max(0, quota.used + units) end
    if stop == quota.last then quota.planned = math.max(0, quota.planned + units) end
  end
  save()
end

if ARGV[1] == 'take' then return take() end
if ARGV[1] == 'confirm' then return confirm() end
if ARGV[1] == 'correct' then return correct() end
local free = now < pause and 0 or math.huge
for _, quota in ipairs(quotas) do
  free = math.min(free, quota.last > quota.stop and 0 or math.max(0, quota.count - quota.planned))
end
return {free, due() - now}
