-- Takes a run over: its lease must have ended, or its owner must be known to have exited. The fence grows by one.
-- A lease more than twice its length ahead counts as ended: Redis' clock has jumped back.
-- KEYS r e
-- ok fence sequence_number status cancel seen old_owner lease_until | live ms_left owner lease_until
-- ended status reason sequence_number engine text_length fence | gone
read_args({
  'new_owner', 'lease_ms',
  'exited_owner', -- or ''
  'call_id',
})
local r = KEYS[1]
local fence, status, sequence_number, cancel, owner, lease_until, seen, last_call = unpack(redis.call('HMGET', r,
  'fence', 'status', 'sequence_number', 'cancel', 'owner', 'lease_until', 'seen_sequence_number', 'last_call'))
if not fence then return {'gone'} end
if not is_live(status) then return ended(r) end
local now = now_ms()
fence, lease_until = tonumber(fence), tonumber(lease_until)
if last_call == args.call_id then -- ours already, the reply was lost
  owner = redis.call('HGET', r, 'old_owner')
else
  local held = lease_until > now and lease_until <= now + 2 * args.lease_ms
  if held and not (args.exited_owner ~= '' and args.exited_owner == owner) then
    return {'live', lease_until - now, owner, lease_until}
  end
  lease_until = now + args.lease_ms
  drop_uncounted(KEYS[2], tonumber(sequence_number))
  fence = redis.call('HINCRBY', r, 'fence', 1)
  redis.call('HSET', r, 'owner', args.new_owner, 'lease_until', lease_until, 'last_call', args.call_id,
    'old_owner', owner)
end
return {'ok', fence, tonumber(sequence_number), status, tonumber(cancel), seen or '', owner, lease_until}
