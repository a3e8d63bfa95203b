-- Lets one call at a time write the parts of a session that does not exist yet, and removes what another one has left.
-- KEYS m msg tree ids copy
-- ARGV 1 call_id 2 lease_ms
-- ok | busy (another call is at it) | exists
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
local writer = redis.call('GET', KEYS[5])
if writer == ARGV[1] then return {'ok'} end -- the first reply was lost
if writer then return {'busy'} end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
redis.call('SET', KEYS[5], ARGV[1], 'PX', ARGV[2])
return {'ok'}
