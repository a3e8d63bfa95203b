-- Takes a run over: its lease must have ended, or its owner must be known to have exited. The fence grows by one.
-- A lease more than twice its length ahead counts as ended: Redis' clock has jumped back.
-- KEYS r e
-- ARGV 1 new_owner 2 lease_ms 3 exited_owner or '' 4 call_id
-- ok fence sequence_number status cancel seen old_owner lease_until | live ms_left owner lease_until
-- ended status reason sequence_number engine text_length fence | gone
local r = redis.call('HMGET', KEYS[1], 'fence', 'status', 'sequence_number', 'cancel', 'owner', 'lease_until',
  'seen_sequence_number', 'reason', 'engine', 'text_length', 'last_call', 'old_owner')
if not r[1] then return {'gone'} end
if not is_live(r[2]) then
  return {'ended', r[2], r[8], tonumber(r[3]), r[9], tonumber(r[10]), tonumber(r[1])}
end
local now = now_ms()
local fence, owner, lease_until = tonumber(r[1]), r[5], tonumber(r[6])
if r[11] == ARGV[4] then -- ours already, the reply was lost
  owner = r[12]
else
  local held = lease_until > now and lease_until <= now + 2 * ARGV[2]
  if held and not (ARGV[3] ~= '' and ARGV[3] == owner) then
    return {'live', lease_until - now, owner, lease_until}
  end
  lease_until = now + ARGV[2]
  drop_uncounted(KEYS[2], tonumber(r[3]))
  fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'lease_until', lease_until, 'last_call', ARGV[4], 'old_owner', owner)
end
return {'ok', fence, tonumber(r[3]), r[2], tonumber(r[4]), r[7] or '', owner, lease_until}
