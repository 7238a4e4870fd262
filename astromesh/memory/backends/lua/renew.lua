-- Renews leases. KEYS: leases. ARGV: prefix, until, milliseconds until the server deletes them, token of each.
-- Returns for each: 0 renewed, 1 an interrupt is requested, -1 lost.
local found = {}
for n, lease in ipairs(KEYS) do
    local token, interrupted = unpack(redis.call('HMGET', lease, 'token', 'interrupted'))
    if token == ARGV[n + 3] then
        redis.call('HSET', lease, 'expires', ARGV[2])
        redis.call('PEXPIRE', lease, ARGV[3])
        found[n] = interrupted and 1 or 0
    else
        found[n] = -1
    end
end
return found
