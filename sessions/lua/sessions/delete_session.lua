-- Removes a session with all its runs and leaves a tombstone, so that nothing late re-creates it.
-- UNLINK comes first: with it the script may go on when memory is full.
-- KEYS m x runs msg log q tree ids share v
-- ok uid offset rids (every run whose keys are gone) | conflict revision | not_found
read_args({
  'channel',
  'uid', -- '' = no check
  'call_id', 'event',
  'base', -- how the keys of its runs begin
  'tombstone_ms',
  'if_revision', -- or ''
})
local m, x, runs = unpack(KEYS)
local uid, epoch, offset, revision = unpack(redis.call('HMGET', m, 'uid', 'epoch', 'offset', 'revision'))
if not uid then
  local call_id, owner, last = string.match(redis.call('GET', x) or '', '^(%S+) (%S+) (%d+)$')
  if call_id == args.call_id then return {'ok', owner, tonumber(last), {}} end -- deleted before, the reply was lost
  return {'not_found'}
end
if args.uid ~= '' and uid ~= args.uid then return {'not_found'} end
if args.if_revision ~= '' and revision ~= args.if_revision then return {'conflict', tonumber(revision)} end
offset = offset + 1
local rids = redis.call('ZRANGE', runs, 0, -1)
redis.call('UNLINK', m, runs, unpack(KEYS, 4))
for _, rid in ipairs(rids) do
  redis.call('UNLINK', args.base .. 'r:' .. rid, args.base .. 'e:' .. rid, args.base .. 'tok:' .. rid)
end
redis.call('SET', x, args.call_id .. ' ' .. uid .. ' ' .. offset, 'PX', args.tombstone_ms)
publish_session(epoch, offset, args.event)
return {'ok', uid, offset, rids}
