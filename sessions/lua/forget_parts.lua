-- Removes the parts of a session that does not exist.
-- KEYS m msg tree ids
-- ok | exists
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
return {'ok'}
