-- Admit nobody to any budget of a rate for a while, or until an earlier pause ends that lasts longer.
--
-- KEYS  1 string: end of the pause, in microseconds of the server's clock
-- ARGV  1 length in us
-- Reply nothing

local time = redis.call('TIME')
local stop = time[1] * 1000000 + time[2] + tonumber(ARGV[1])
if stop > tonumber(redis.call('GET', KEYS[1]) or 0) then
  redis.call('SET', KEYS[1], string.format('%.0f', stop), 'PX', math.max(1, math.ceil(tonumber(ARGV[1]) / 1000)))
end
