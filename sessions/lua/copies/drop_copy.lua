-- Removes the parts that a call has written of a session that will not be.
-- KEYS m msg tree ids copy
-- ARGV 1 call_id
-- ok | lost (they are not this call's)
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('GET', KEYS[5]) ~= ARGV[1] then return {'lost'} end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
return {'ok'}
