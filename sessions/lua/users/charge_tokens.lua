-- Counts the tokens of one response in its user's day, once however often it is sent.
-- KEYS u:{uid}:q:DAY u:{uid}:q:RID
-- ARGV 1 tokens 2 life_ms of the day 3 life_ms of the mark
-- ok tokens
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('HINCRBY', KEYS[1], 'tokens', ARGV[1])
  redis.call('SET', KEYS[2], 1, 'PX', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {'ok', tonumber(redis.call('HGET', KEYS[1], 'tokens') or 0)}
