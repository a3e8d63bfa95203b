-- Removes the parts that a call has written of a session that will not be.
-- KEYS m msg tree ids copy
-- ok | lost (they are not this call's)
read_args({'call_id'})
local m, msg, tree, ids, copy = unpack(KEYS)
if redis.call('EXISTS', m) == 1 or redis.call('GET', copy) ~= args.call_id then return {'lost'} end
redis.call('UNLINK', msg, tree, ids, copy)
return {'ok'}
