-- Lets one call at a time write the parts of a session that does not exist yet, and removes what another one has left.
-- KEYS m msg tree ids copy
-- ok | busy (another call is at it) | exists
read_args({'call_id', 'lease_ms'})
local m, msg, tree, ids, copy = unpack(KEYS)
if redis.call('EXISTS', m) == 1 then return {'exists'} end
local writer = redis.call('GET', copy)
if writer == args.call_id then return {'ok'} end -- the first reply was lost
if writer then return {'busy'} end
redis.call('UNLINK', msg, tree, ids)
redis.call('SET', copy, args.call_id, 'PX', args.lease_ms)
return {'ok'}
