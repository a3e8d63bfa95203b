-- Counts one more answer of a user, unless there are as many as may be. An owner repeats this while the answer lives.
-- KEYS u:{uid}:a
-- ARGV 1 response id 2 limit ('' = only renew) 3 life_ms
-- ok count | full count
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local count = redis.call('ZCARD', KEYS[1])
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  if ARGV[2] ~= '' and count >= tonumber(ARGV[2]) then return {'full', count} end
  count = count + 1
end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'ok', count}
