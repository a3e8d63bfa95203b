-- Sets the cancel flag of a live run: from now on it can only end `cancelled`. The first caller's words stay. PERSIST
-- changes nothing (a live run has no expiry); after it the script may go on when memory is full.
-- KEYS r
-- ok owner fence lease_until status first cancel_at
-- ended status reason sequence_number engine text_length fence | not_found
read_args({
  'uid', -- '' = no check
  'by', 'reason',
  'seen', -- or ''
})
local r = KEYS[1]
local uid, status, owner, fence, lease_until, cancel, cancel_at = unpack(redis.call('HMGET', r, 'uid', 'status',
  'owner', 'fence', 'lease_until', 'cancel', 'cancel_at'))
if not uid or (args.uid ~= '' and uid ~= args.uid) then return {'not_found'} end
if not is_live(status) then return ended(r) end
local first = cancel == '0'
cancel_at = first and now_ms() or tonumber(cancel_at)
if first then
  redis.call('PERSIST', r)
  redis.call('HSET', r, 'cancel', 1, 'cancel_by', args.by, 'cancel_reason', args.reason,
    'seen_sequence_number', args.seen, 'cancel_at', cancel_at)
end
return {'ok', owner, tonumber(fence), tonumber(lease_until), status, first and 1 or 0, cancel_at}
