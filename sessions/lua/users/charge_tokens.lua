-- Counts the tokens of one response in its user's day, once however often it is sent.
-- KEYS u:{uid}:q:DAY u:{uid}:q:RID
-- ok tokens
read_args({
  'num_tokens',
  'day_ms', 'mark_ms', -- how long the count lives, and what tells that it was counted
})
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('HINCRBY', KEYS[1], 'tokens', args.num_tokens)
  redis.call('SET', KEYS[2], 1, 'PX', args.mark_ms)
  redis.call('PEXPIRE', KEYS[1], args.day_ms)
end
return {'ok', tonumber(redis.call('HGET', KEYS[1], 'tokens') or 0)}
