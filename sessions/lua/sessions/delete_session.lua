-- Removes a session with all its runs and leaves a tombstone, so that nothing late re-creates it.
-- UNLINK comes first: with it the script may go on when memory is full.
-- KEYS m msg log q x runs tree ids share
-- ARGV 1 pub 2 live 3 uid ('' = no check) 4 call_id 5 event 6 base of run keys 7 tombstone_ms
--      8 if_revision or ''
-- ok uid offset rids (every run whose keys are gone) | conflict revision | not_found
local m = redis.call('HMGET', KEYS[1], 'uid', 'epoch', 'offset', 'revision')
if not m[1] then
  local call_id, uid, offset = string.match(redis.call('GET', KEYS[5]) or '', '^(%S+) (%S+) (%d+)$')
  if call_id == ARGV[4] then return {'ok', uid, tonumber(offset), {}} end -- deleted before, the reply was lost
  return {'not_found'}
end
if ARGV[3] ~= '' and m[1] ~= ARGV[3] then return {'not_found'} end
if ARGV[8] ~= '' and m[4] ~= ARGV[8] then return {'conflict', tonumber(m[4])} end
local offset = m[3] + 1
local rids = redis.call('ZRANGE', KEYS[6], 0, -1)
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7], KEYS[8], KEYS[9])
redis.call('UNLINK', ARGV[6] .. 'v')
for _, rid in ipairs(rids) do
  redis.call('UNLINK', ARGV[6] .. 'r:' .. rid, ARGV[6] .. 'e:' .. rid, ARGV[6] .. 'tok:' .. rid)
end
redis.call('SET', KEYS[5], ARGV[4] .. ' ' .. m[1] .. ' ' .. offset, 'PX', ARGV[7])
publish_session(m[2], offset, ARGV[5])
return {'ok', m[1], offset, rids}
