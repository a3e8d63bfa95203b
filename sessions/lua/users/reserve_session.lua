-- Enters a session into its user's index, unless the user has as many as they may.
-- KEYS u:{uid}:s
-- ARGV 1 session id 2 score 3 most sessions, 0 = any number
-- ok | full
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and ARGV[3] ~= '0'
  and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return {'full'} end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
return {'ok'}
