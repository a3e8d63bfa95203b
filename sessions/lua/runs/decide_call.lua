-- Keeps what is said of a call that waits for a user's word; the first word counts. Maybe with a grant for the tool,
-- which the session keeps.
-- KEYS r m
-- ok owner | known decision owner | locked reason | ended status reason sequence_number engine text_length fence
-- not_found
read_args({
  'uid', -- '' = no check: the owner of the run says that time is over
  'call_id', 'decision',
  'granted_tool', -- or ''
})
local r, m = unpack(KEYS)
local uid, status, owner = unpack(redis.call('HMGET', r, 'uid', 'status', 'owner'))
if not uid or (args.uid ~= '' and uid ~= args.uid) then return {'not_found'} end
local locked = redis.call('HGET', m, 'locked')
if not locked then return {'not_found'} end
if args.uid ~= '' and locked ~= '' then return {'locked', locked} end
if not is_live(status) then return ended(r) end
local field = 'consent:' .. args.call_id
local known = redis.call('HGET', r, field)
if known then return {'known', known, owner} end
redis.call('HSET', r, field, args.decision)
if args.granted_tool ~= '' then redis.call('HSET', m, 'grant:' .. args.granted_tool, 1) end
return {'ok', owner}
