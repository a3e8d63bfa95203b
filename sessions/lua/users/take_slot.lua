-- Counts one more answer of a user, unless there are as many as may be. An owner repeats this while the answer lives.
-- KEYS u:{uid}:a
-- ok count | full count
read_args({
  'response_id',
  'limit', -- '' = only renew
  'life_ms',
})
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local count = redis.call('ZCARD', KEYS[1])
if not redis.call('ZSCORE', KEYS[1], args.response_id) then
  if args.limit ~= '' and count >= tonumber(args.limit) then return {'full', count} end
  count = count + 1
end
redis.call('ZADD', KEYS[1], now + args.life_ms, args.response_id)
redis.call('PEXPIRE', KEYS[1], args.life_ms)
return {'ok', count}
