-- A rate limit by the generic cell rate algorithm: one number for each limit, no counter to reset.
-- KEYS u:{uid}:rl
-- ARGV 1 field 2 interval_us 3 burst 4 cost 5 life_ms
-- ok remaining reset_ms | limited retry_after_ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = math.max(tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0), now)
local next_arrival = arrival + ARGV[2] * ARGV[4]
local allowed_at = next_arrival - ARGV[2] * ARGV[3]
if allowed_at > now then return {'limited', math.ceil((allowed_at - now) / 1000)} end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', next_arrival)) -- `..` would round microseconds
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {'ok', math.floor((now - allowed_at) / ARGV[2]), math.ceil((next_arrival - now) / 1000)}
