-- Takes a lease. KEYS: lease. ARGV: prefix, holder, now, until, milliseconds until the server deletes it.
-- Returns the token, 0 while it has another holder.
local prefix, holder, now, ends, forgotten = unpack(ARGV)
local whose, expires = unpack(redis.call('HMGET', KEYS[1], 'holder', 'expires'))
if whose and whose ~= holder and tonumber(expires) > tonumber(now) then
    return 0
end
local token = redis.call('INCR', prefix .. ':tokens')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'token', token, 'holder', holder, 'expires', ends)
redis.call('PEXPIRE', KEYS[1], forgotten)
return token
